// Sums over the threads of a block, and over long arrays by one block.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace tersum::gpu {

/// Inclusive prefix sum over the threads of a block of up to 1024, a multiple of 32. Every thread
/// calls it; `total` is the sum of all. Safe to call again at once.
__device__ inline std::uint32_t block_scan(std::uint32_t value, std::uint32_t& total) {
  __shared__ std::uint32_t sums[32];
  const unsigned lane = threadIdx.x % 32;
  const unsigned warp = threadIdx.x / 32;
#pragma unroll
  for (int o = 1; o < 32; o *= 2) {
    const std::uint32_t other = __shfl_up_sync(0xffffffffu, value, o);
    if (lane >= o) value += other;
  }
  __syncthreads();  // the former call's sums have been read
  if (lane == 31) sums[warp] = value;
  __syncthreads();
  const unsigned warps = blockDim.x / 32;
  std::uint32_t sum = lane < warps ? sums[lane] : 0;
#pragma unroll
  for (int o = 1; o < 32; o *= 2) {
    const std::uint32_t other = __shfl_up_sync(0xffffffffu, sum, o);
    if (lane >= o) sum += other;
  }
  total = __shfl_sync(0xffffffffu, sum, 31);
  const std::uint32_t before = __shfl_sync(0xffffffffu, sum, warp == 0 ? 0 : warp - 1);
  return value + (warp == 0 ? 0 : before);
}

/// values[i] becomes the sum of all before it, i < count; returns the sum of all. `values` is
/// aligned to 16 bytes. For one whole block.
__device__ inline std::uint32_t scan_array(std::uint32_t* values, std::uint32_t count) {
  constexpr unsigned kEach = 8;
  std::uint32_t carry = 0;
  for (std::uint32_t start = 0; start < count; start += blockDim.x * kEach) {
    const std::uint32_t first = start + threadIdx.x * kEach;
    std::uint32_t v[kEach];
    std::uint32_t sum = 0;
    if (first + kEach <= count) {
#pragma unroll
      for (unsigned c = 0; c < kEach; c += 4) {
        const uint4 four = __ldcg(reinterpret_cast<const uint4*>(values + first + c));
        v[c] = four.x, v[c + 1] = four.y, v[c + 2] = four.z, v[c + 3] = four.w;
      }
    } else {
#pragma unroll
      for (unsigned c = 0; c < kEach; ++c) {
        v[c] = first + c < count ? __ldcg(values + first + c) : 0;
      }
    }
#pragma unroll
    for (unsigned c = 0; c < kEach; ++c) sum += v[c];
    std::uint32_t total = 0;
    std::uint32_t before = carry + block_scan(sum, total) - sum;
#pragma unroll
    for (unsigned c = 0; c < kEach; ++c) {
      if (first + c < count) values[first + c] = before;
      before += v[c];
    }
    carry += total;
  }
  return carry;
}

/// True in all threads of the block that is the last of `blocks` to come here; what the others
/// wrote before is visible to it then.
__device__ inline bool is_last_block(std::uint32_t* ticket, std::uint32_t blocks) {
  __shared__ bool last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) last = atomicAdd(ticket, 1u) == blocks - 1;
  __syncthreads();
  if (last) __threadfence();
  return last;
}

/// Adds a block's histogram to the global one and clears it.
__device__ inline void flush_histogram(std::uint32_t* local, std::uint32_t bins,
                                       std::uint32_t* global) {
  __syncthreads();
  for (std::uint32_t b = threadIdx.x; b < bins; b += blockDim.x) {
    if (local[b] != 0) atomicAdd(global + b, local[b]);
  }
}

__device__ inline void clear_histogram(std::uint32_t* local, std::uint32_t bins) {
  for (std::uint32_t b = threadIdx.x; b < bins; b += blockDim.x) local[b] = 0;
  __syncthreads();
}

/// Where the k-th largest of a histogram's elements lies.
struct BinOfKth {
  std::uint32_t bin;
  std::uint32_t left;      ///< it is the left-th largest of its bin
  std::uint32_t at_least;  ///< elements in this bin and above
};

/// For one whole block; blockDim.x divides `bins`; 1 <= k <= sum of the histogram.
__device__ inline BinOfKth find_bin(const std::uint32_t* counts, std::uint32_t bins,
                                    std::uint32_t k) {
  __shared__ BinOfKth found;
  const std::uint32_t each = bins / blockDim.x;
  const std::uint32_t top = bins - 1 - threadIdx.x * each;
  std::uint32_t sum = 0;
  for (std::uint32_t c = 0; c < each; ++c) sum += __ldcg(counts + top - c);
  std::uint32_t total = 0;
  std::uint32_t above = block_scan(sum, total) - sum;
  if (above < k && k <= above + sum) {
    std::uint32_t bin = top;
    std::uint32_t here = __ldcg(counts + bin);
    while (above + here < k) {
      above += here;
      here = __ldcg(counts + --bin);
    }
    found = {bin, k - above, above + here};
  }
  __syncthreads();
  const BinOfKth result = found;
  __syncthreads();
  return result;
}

}  // namespace tersum::gpu
