#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <string>

#include "cuda/collective_launch.cuh"
#include "cuda/error.hpp"
#include "cuda/widen.hpp"
#include "tersum/error.hpp"

namespace tersum::gpu {
namespace {

constexpr int kThreads = 256;

template <class T>
__global__ __launch_bounds__(kThreads) void widen_values(const T* input, float* output,
                                                         std::size_t count) {
  const std::size_t i = blockIdx.x * std::size_t{kThreads} + threadIdx.x;
  if (i < count) output[i] = static_cast<float>(input[i]);
}

template <class T>
void launch_widen(const void* input, float* output, std::size_t count, StreamView stream) {
  const auto blocks = static_cast<unsigned>((count + kThreads - 1) / kThreads);
  widen_values<<<blocks, kThreads, 0, stream.get()>>>(static_cast<const T*>(input), output, count);
  check_launch("widen_values");
}

}  // namespace

void widen_halves(const void* input, DType dtype, float* output, std::size_t count,
                  StreamView stream) {
  if (dtype != DType::Float16 && dtype != DType::BFloat16) {
    throw Error(Code::InvalidArgument, std::string(to_string(dtype)) + " is no 16-bit float");
  }
  if (count == 0) return;
  if (dtype == DType::Float16) return launch_widen<__half>(input, output, count, stream);
  launch_widen<__nv_bfloat16>(input, output, count, stream);
}

void load_widen_halves() {
  load_kernel(widen_values<__half>);
  load_kernel(widen_values<__nv_bfloat16>);
}

}  // namespace tersum::gpu
