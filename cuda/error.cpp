#include "cuda/error.hpp"

#include <string>

#include "tersum/error.hpp"

namespace tersum::gpu {

void check(cudaError_t code, const char* what) {
  if (code == cudaSuccess) return;
  cudaGetLastError();  // it has been reported: the next call starts clean
  throw Error(
      code == cudaErrorMemoryAllocation ? Code::OutOfMemory : Code::System,
      std::string(what) + ": " + cudaGetErrorString(code) + " (" + cudaGetErrorName(code) + ")");
}

void check_launch(const char* kernel) {
  check(cudaGetLastError(), kernel);
}

bool has_device() noexcept {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count > 0;
  cudaGetLastError();
  return false;
}

}  // namespace tersum::gpu
