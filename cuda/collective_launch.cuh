// Launches of kernels that begin with begin_after_previous().
#pragma once

#include <cuda_runtime.h>

#include "cuda/error.hpp"
#include "cuda/stream.hpp"

namespace tersum::gpu {

/// Launches a kernel; `early` lets it be set up while the one before it in the stream still runs
/// (programmatic dependent launch). Kernels of others around it notice nothing.
template <class... Parameters>
void launch(void (*kernel)(Parameters...), unsigned blocks, unsigned threads, unsigned shared_bytes,
            bool early, StreamView stream, const Parameters&... parameters) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(blocks);
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream.get();
  config.attrs = &attribute;
  config.numAttrs = early ? 1 : 0;
  check(cudaLaunchKernelEx(&config, kernel, parameters...), "launch of a collective");
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
