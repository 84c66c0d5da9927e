// The masks of TwinState, for kernels' sake apart from it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/stream.hpp"

namespace tersum::gpu {

/// values[i] = 0 for every i < count whose bit of `mask` is set.
void apply_mask(StreamView stream, const std::uint32_t* mask, float* values, std::size_t count);

}  // namespace tersum::gpu
