// Launches of kernels that begin with begin_after_previous().
#pragma once

#include <cuda_runtime.h>

#include "cuda/collective_launch.hpp"
#include "cuda/error.hpp"

namespace tersum::gpu {

/// Launches a kernel; `early` lets it be set up while the one before it in the stream still runs
/// (programmatic dependent launch). Kernels of others around it notice nothing.
template <class... Parameters>
void launch(void (*kernel)(Parameters...), unsigned blocks, unsigned threads, unsigned shared_bytes,
            bool early, StreamView stream, const Parameters&... parameters) {
  void* arguments[] = {const_cast<Parameters*>(&parameters)...};
  launch_kernel(reinterpret_cast<const void*>(kernel), {blocks, threads, shared_bytes, early},
                stream, arguments);
}

template <class... Parameters>
void launch(void (*kernel)(Parameters...), unsigned blocks, unsigned threads, bool early,
            StreamView stream, const Parameters&... parameters) {
  launch(kernel, blocks, threads, 0, early, stream, parameters...);
}

/// Brings a kernel's code onto the current device, to be launched with up to `shared_bytes`.
template <class... Parameters>
void load_kernel(void (*kernel)(Parameters...), unsigned shared_bytes = 0) {
  if (shared_bytes != 0) {
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(shared_bytes)),
          "cudaFuncSetAttribute");
  }
  cudaFuncAttributes attributes;
  check(cudaFuncGetAttributes(&attributes, kernel), "cudaFuncGetAttributes");
}

}  // namespace tersum::gpu
