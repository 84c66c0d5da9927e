#include "cuda/codec.cuh"
#include "cuda/divide.hpp"
#include "cuda/error.hpp"
#include "cuda/kernels.hpp"

namespace tersum::gpu {
namespace {

constexpr int kThreads = 256;

__global__ __launch_bounds__(kThreads) void divide_values(float* values, std::size_t count,
                                                          float divisor, bool aligned) {
  const std::size_t i = (blockIdx.x * std::size_t{kThreads} + threadIdx.x) * 4;
  const float4 v = load4(values, i, count, aligned);
  store4(values, i, count, aligned,
         make_float4(__fdiv_rn(v.x, divisor), __fdiv_rn(v.y, divisor), __fdiv_rn(v.z, divisor),
                     __fdiv_rn(v.w, divisor)));
}

}  // namespace

void divide(StreamView stream, float* values, std::size_t count, float divisor) {
  if (count == 0) return;
  divide_values<<<blocks_for(count, kThreads * 4), kThreads, 0, stream.get()>>>(
      values, count, divisor, is_vector_aligned(values));
  check_launch("divide");
}

const void* divide_kernel() {
  return reinterpret_cast<const void*>(divide_values);
}

}  // namespace tersum::gpu
