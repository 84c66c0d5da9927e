// Kernels that do nothing for a given time.
#pragma once

#include <chrono>

#include "cuda/stream.hpp"

namespace tersum::replay {

/// Keeps one block on every multiprocessor busy for `time`, in the order of `stream`.
void keep_busy(gpu::StreamView stream, std::chrono::nanoseconds time);

}  // namespace tersum::replay
