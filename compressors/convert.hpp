// Conversions between fp32 and the other floating element types.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tersum/types.hpp"

namespace tersum::compressors {

/// out[count] = in[count] of `dtype` (Float16, BFloat16, Float32 or Float64). Narrowing rounds to
/// nearest even; subnormals, signed zeros and infinities are kept, a NaN stays a NaN with its sign.
/// The same bits on every machine. `in` needs no alignment. Buffers may be the same memory only for
/// Float32. Any thread. Error InvalidArgument for other dtypes.
void to_float(DType dtype, const void* in, float* out, std::size_t count);

/// The other way; the same promises. `out` needs no alignment.
void from_float(const float* in, DType dtype, void* out, std::size_t count);

}  // namespace tersum::compressors
