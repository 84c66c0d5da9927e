#include "cuda/collective_launch.hpp"

#include <cuda_runtime_api.h>

#include <unordered_map>

#include "cuda/driver.hpp"
#include "cuda/error.hpp"

namespace tersum::gpu {
namespace {

/// The driver's name for a kernel; good for all devices. Null if there is none.
CUfunction driver_kernel(const void* kernel) {
  thread_local std::unordered_map<const void*, cudaKernel_t> kernels;  // needs no lock
  const auto [entry, is_new] = kernels.try_emplace(kernel, nullptr);
  if (is_new && cudaGetKernel(&entry->second, kernel) != cudaSuccess) {
    cudaGetLastError();
    entry->second = nullptr;
  }
  return reinterpret_cast<CUfunction>(entry->second);
}

/// False if the driver cannot do it, or not yet: a thread may be without a context until its first
/// call of the runtime.
bool launch_by_driver(const void* kernel, const LaunchShape& shape, StreamView stream,
                      void** arguments) {
  static const auto launch = driver_function<decltype(cuLaunchKernelEx)>("cuLaunchKernelEx");
  const CUfunction function = launch ? driver_kernel(kernel) : nullptr;
  if (function == nullptr) return false;
  CUlaunchAttribute attribute{};
  attribute.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
  attribute.value.programmaticStreamSerializationAllowed = 1;
  CUlaunchConfig config{};
  config.gridDimX = shape.blocks;
  config.blockDimX = shape.threads;
  config.gridDimY = config.gridDimZ = config.blockDimY = config.blockDimZ = 1;
  config.sharedMemBytes = shape.shared_bytes;
  config.hStream = stream.get();
  config.attrs = &attribute;
  config.numAttrs = shape.early ? 1 : 0;
  return launch(&config, function, arguments, nullptr) == CUDA_SUCCESS;
}

}  // namespace

void launch_kernel(const void* kernel, const LaunchShape& shape, StreamView stream,
                   void** arguments) {
  if (launch_by_driver(kernel, shape, stream, arguments)) return;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(shape.blocks);
  config.blockDim = dim3(shape.threads);
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = stream.get();
  config.attrs = &attribute;
  config.numAttrs = shape.early ? 1 : 0;
  check(cudaLaunchKernelExC(&config, kernel, arguments), "launch of a collective");
}

}  // namespace tersum::gpu
