// One launch of a kernel, at the least cost for the thread that makes it.
#pragma once

#include "cuda/stream.hpp"

namespace tersum::gpu {

struct LaunchShape {
  unsigned blocks, threads, shared_bytes;
  bool early;  ///< set up while the kernel before it in the stream still runs
};

/// Launches a __global__ function with pointers to its arguments, on the current device. Goes
/// straight to the driver: the runtime looks the kernel up at every launch.
void launch_kernel(const void* kernel, const LaunchShape& shape, StreamView stream,
                   void** arguments);

}  // namespace tersum::gpu
