// Streams that wait for works.
#pragma once

#include <cstddef>

#include "src/engine/work_state.hpp"
#include "tersum/types.hpp"

namespace tersum::runtime {

/// What is put into `stream` from now on starts after `work` is done. See Work::wait_on().
void hold_until(Stream stream, WorkState& work);

/// Streams of a device that may be held at a time. Each one that waits keeps one of the queues busy
/// through which CUDA starts kernels, and so does each that waits for such a stream; up to about
/// half of them CUDA finds a free queue for what the works need that are waited for
/// (bench/results/queues-*.md). `connections` is what CUDA_DEVICE_MAX_CONNECTIONS says, null if it
/// is not set: CUDA has 8 then.
std::size_t most_held_streams(const char* connections) noexcept;

}  // namespace tersum::runtime
