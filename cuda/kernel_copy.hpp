// Copies that need no copy engine.
#pragma once

#include <cstddef>

#include "cuda/stream.hpp"

namespace tersum::gpu {

/// Copies `bytes` between device memory and page-locked host memory, either way, by a kernel of a
/// few blocks. Not as fast as a copy engine, but for what must not wait for the copies of others:
/// streams share a few queues for the copies of each direction, and a copy that itself waits,
/// behind Work::wait_on() say, holds up all that are behind it in its queue. CUDA starts a kernel
/// while other streams wait. Any alignment; widest where both ends have the same offset from 16
/// bytes. Puts one kernel into `stream`, of the device that is current; 0 bytes: none.
void copy_by_kernel(StreamView stream, void* to, const void* from, std::size_t bytes);

}  // namespace tersum::gpu
