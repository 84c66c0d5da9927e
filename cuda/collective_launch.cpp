#include "cuda/collective_launch.hpp"

#include <cuda_runtime_api.h>

#include <unordered_map>

#include "cuda/buffer.hpp"
#include "cuda/driver.hpp"
#include "cuda/error.hpp"
#include "tersum/error.hpp"

namespace tersum::gpu {
namespace {

constexpr auto kWhat = "launch of a collective";

/// The driver's name for a kernel; good for all devices.
CUfunction driver_kernel(const void* kernel) {
  thread_local std::unordered_map<const void*, cudaKernel_t> kernels;  // needs no lock
  cudaKernel_t& known = kernels[kernel];
  if (known == nullptr) check(cudaGetKernel(&known, kernel), kWhat);
  return reinterpret_cast<CUfunction>(known);
}

}  // namespace

void launch_kernel(const void* kernel, const LaunchShape& shape, StreamView stream,
                   void** arguments) {
  static const auto launch = driver_function<decltype(cuLaunchKernelEx)>("cuLaunchKernelEx");
  if (launch == nullptr)
    throw Error(Code::Unsupported, "this CUDA driver is older than 12.0: install a newer one");
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
  const CUfunction function = driver_kernel(kernel);
  CUresult result = launch(&config, function, arguments, nullptr);
  if (result == CUDA_ERROR_INVALID_CONTEXT) {  // taken off this thread by somebody
    check(cudaSetDevice(current_device()), "cudaSetDevice");
    result = launch(&config, function, arguments, nullptr);
  }
  check(static_cast<cudaError_t>(result), kWhat);  // the numbers are the same
}

}  // namespace tersum::gpu
