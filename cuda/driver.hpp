// Functions of the CUDA driver, looked up at run time: the library must load where no driver is.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

namespace tersum::gpu {

/// The driver's function `name` (as cuda.h declares it: Function is its decltype) since CUDA
/// kVersion. Null if there is no driver here, or it lacks the function. Makes no context. Keep the
/// result: looking up takes microseconds.
template <class Function, int kVersion = 12000>
Function* driver_function(const char* name) noexcept {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  const cudaError_t code =
      cudaGetDriverEntryPointByVersion(name, &function, kVersion, cudaEnableDefault, &found);
  if (code != cudaSuccess || found != cudaDriverEntryPointSuccess) {
    cudaGetLastError();
    return nullptr;
  }
  return reinterpret_cast<Function*>(function);
}

}  // namespace tersum::gpu
