// 16-bit floats as fp32.
#pragma once

#include <cstddef>

#include "cuda/stream.hpp"
#include "tersum/types.hpp"

namespace tersum::gpu {

/// output[i] = fp32(input[i]) for [count] fp16 or bf16 on the device, exactly. Puts one kernel into
/// `stream`, of the device that is current; count 0: none. Error InvalidArgument for other dtypes.
void widen_halves(const void* input, DType dtype, float* output, std::size_t count,
                  StreamView stream);

/// Loads the kernels of widen_halves(), which may wait for all that runs on the device.
void load_widen_halves();

}  // namespace tersum::gpu
