// Arithmetic of sign on the device (compressors/sign.cpp).
#pragma once

#include "cuda/block_codec.cuh"

namespace tersum::gpu {

/// The mean magnitude from the lanes' sums, or a NaN that poisons the block.
__device__ inline float mean_of(float sum, std::size_t count) {
#pragma unroll
  for (int o = 16; o > 0; o /= 2) sum = __fadd_rn(sum, __shfl_down_sync(kAllLanes, sum, o));
  const float mean = __fdiv_rn(__shfl_sync(kAllLanes, sum, 0), static_cast<float>(count));
  return magnitude_of(mean) < kInfinityBits ? mean : float_of(kPoisonBits);
}

__device__ inline bool is_poison(float mean) {
  return bits_of(mean) == kPoisonBits;
}

__device__ inline float signed_mean(float mean, float x) {
  return float_of(bits_of(mean) | (bits_of(x) & 0x80000000u));
}

}  // namespace tersum::gpu
