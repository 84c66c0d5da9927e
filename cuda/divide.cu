#include <algorithm>

#include "cuda/divide.hpp"
#include "cuda/error.hpp"

namespace tersum::gpu {
namespace {

constexpr unsigned kThreads = 256;
constexpr std::size_t kMostBlocks = 1024;

__global__ void __launch_bounds__(kThreads)
    divide_kernel(float* values, std::size_t count, float divisor) {
  const std::size_t stride = std::size_t{gridDim.x} * kThreads;
  for (std::size_t i = std::size_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += stride)
    values[i] = __fdiv_rn(values[i], divisor);
}

}  // namespace

void divide(StreamView stream, float* values, std::size_t count, float divisor) {
  if (count == 0) return;
  const auto blocks =
      static_cast<unsigned>(std::min(kMostBlocks, (count + kThreads - 1) / kThreads));
  divide_kernel<<<blocks, kThreads, 0, stream.get()>>>(values, count, divisor);
  check_launch("divide");
}

}  // namespace tersum::gpu
