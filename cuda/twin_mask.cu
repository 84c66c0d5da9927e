#include "cuda/twin_mask.hpp"

#include <cuda_runtime.h>

#include "cuda/error.hpp"
#include "cuda/kernels.hpp"

namespace tersum::gpu {
namespace {

__global__ __launch_bounds__(256) void zero_masked(const std::uint32_t* mask, float* values,
                                                   std::size_t count) {
  const std::size_t i = blockIdx.x * std::size_t{256} + threadIdx.x;
  if (i < count && (mask[i / 32] >> i % 32 & 1) != 0) values[i] = 0.0f;
}

}  // namespace

void apply_mask(StreamView stream, const std::uint32_t* mask, float* values, std::size_t count) {
  if (count == 0) return;
  zero_masked<<<static_cast<unsigned>((count + 255) / 256), 256, 0, stream.get()>>>(mask, values,
                                                                                    count);
  check_launch("zero_masked");
}

const void* twin_mask_kernel() {
  return reinterpret_cast<const void*>(zero_masked);
}

}  // namespace tersum::gpu
