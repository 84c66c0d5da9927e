#include "cuda/rank_sum.hpp"

#include <algorithm>
#include <cstdint>

#include "cuda/collective_launch.cuh"
#include "cuda/collective_plan.hpp"
#include "cuda/error.hpp"
#include "cuda/reduction.cuh"

namespace tersum::gpu {
namespace {

constexpr int kThreads = 256;
constexpr std::uint64_t kMostBlocks = 264;  // two for each multiprocessor of a large GPU

template <class T, bool kSum>
__global__ void __launch_bounds__(kThreads)
    sum_runs(const RankRuns runs, std::byte* output, std::uint64_t bytes, Arithmetic arithmetic,
             bool aligned) {
  const std::uint64_t step = std::uint64_t{gridDim.x} * kThreads * sizeof(uint4);
  std::uint64_t at = (std::uint64_t{blockIdx.x} * kThreads + threadIdx.x) * sizeof(uint4);
  for (; at < bytes; at += step) {
    Accumulators<T, uint4, kSum> sums;
    for (int rank = 0; rank < runs.ranks; ++rank) {
      const std::byte* run =
          rank == runs.own_rank
              ? runs.own
              : runs.others + static_cast<std::uint64_t>(rank) * runs.stride_bytes;
      const uint4 values = load_elements<T, uint4>(run + at, aligned, bytes - at);
      if (rank == 0) {
        sums.begin(values, arithmetic);
      } else {
        sums.add(values, arithmetic);
      }
    }
    store_elements<T>(output + at, sums.result(arithmetic, runs.ranks), aligned, bytes - at);
  }
}

bool all_aligned(const RankRuns& runs, const void* output) {
  const auto bits = reinterpret_cast<std::uintptr_t>(runs.others) | runs.stride_bytes |
                    reinterpret_cast<std::uintptr_t>(runs.own) |
                    reinterpret_cast<std::uintptr_t>(output);
  return bits % sizeof(uint4) == 0;
}

}  // namespace

void reduce_runs(const RankRuns& runs, void* output, std::size_t count, DType dtype, ReduceOp op,
                 Scales scales, StreamView stream) {
  const Arithmetic arithmetic = checked_arithmetic(dtype, op, scales);
  if (count == 0) return;
  const std::uint64_t bytes = count * element_bytes(dtype);
  const std::uint64_t wanted = (bytes + kThreads * sizeof(uint4) - 1) / (kThreads * sizeof(uint4));
  const auto blocks = static_cast<unsigned>(std::min(wanted, kMostBlocks));
  const bool aligned = all_aligned(runs, output);
  auto* to = static_cast<std::byte*>(output);
  with_element_type(dtype, [&]<class T>() {
    if (op == ReduceOp::Sum || op == ReduceOp::Average) {
      sum_runs<T, true>
          <<<blocks, kThreads, 0, stream.get()>>>(runs, to, bytes, arithmetic, aligned);
    } else {
      sum_runs<T, false>
          <<<blocks, kThreads, 0, stream.get()>>>(runs, to, bytes, arithmetic, aligned);
    }
  });
  check_launch("sum_runs");
}

void load_reduce_runs() {
  for (int dtype = 0; dtype < kDTypeCount; ++dtype) {
    with_element_type(static_cast<DType>(dtype), [&]<class T>() {
      load_kernel(sum_runs<T, true>);
      load_kernel(sum_runs<T, false>);
    });
  }
}

}  // namespace tersum::gpu
