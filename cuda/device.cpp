#include "cuda/device.hpp"

#include <cuda_runtime_api.h>

#include "cuda/error.hpp"

namespace tersum::gpu {
namespace {

std::string as_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

}  // namespace

std::vector<Device> devices() {
  int count = 0;
  const cudaError_t code = cudaGetDeviceCount(&count);
  if (code == cudaErrorNoDevice || code == cudaErrorInsufficientDriver ||
      code == cudaErrorStubLibrary) {
    cudaGetLastError();
    return {};
  }
  check(code, "cudaGetDeviceCount");
  std::vector<Device> found;
  for (int i = 0; i < count; ++i) {
    cudaDeviceProp properties;
    check(cudaGetDeviceProperties(&properties, i), "cudaGetDeviceProperties");
    Device device{i,
                  properties.name,
                  properties.totalGlobalMem,
                  properties.major,
                  properties.minor,
                  properties.multiProcessorCount,
                  {}};
    for (int j = 0; j < count; ++j) {
      int possible = 0;
      if (j == i) continue;
      check(cudaDeviceCanAccessPeer(&possible, i, j), "cudaDeviceCanAccessPeer");
      if (possible != 0) device.peers.push_back(j);
    }
    found.push_back(std::move(device));
  }
  return found;
}

std::string runtime_version() {
  return as_text(CUDART_VERSION);
}

std::string driver_version() {
  int version = 0;
  if (cudaDriverGetVersion(&version) != cudaSuccess || version == 0) return {};
  return as_text(version);
}

}  // namespace tersum::gpu
