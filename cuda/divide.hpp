// Sums become averages.
#pragma once

#include <cstddef>

#include "cuda/stream.hpp"

namespace tersum::gpu {

/// values[i] /= divisor for [count] fp32 on the device, rounded as the CPU does. Puts one kernel
/// into `stream`, of the device that is current; count 0: none.
void divide(StreamView stream, float* values, std::size_t count, float divisor);

}  // namespace tersum::gpu
