// The device side of the copy-engine all-reduce between two ranks: copy engines carry slices into
// the peer's staging memory, and these kernels say that a slice has arrived, wait for it, add, and
// give the staging memory back.
#include "cuda/collective_kernels.hpp"
#include "cuda/collective_launch.cuh"
#include "cuda/error.hpp"
#include "cuda/reduction.cuh"
#include "cuda/signal.cuh"

namespace tersum::gpu {
namespace {

constexpr int kThreads = 512;
constexpr int kUnroll = 4;

__global__ void wait_for_slices(const __grid_constant__ Group group, std::uint32_t index,
                                std::uint32_t in_flight) {
  if (load_relaxed(&group.progress->failed) != 0) return;
  const int peer = 1 - group.rank;
  const std::uint32_t wanted = group.progress->slices + index - in_flight;
  const auto& flag = board_of(group, group.rank).slice_emptied[peer].value;
  Watch(group).wait(peer, [&] { return has_reached(load_acquire(&flag), wanted); });
}

__global__ void signal_slice(const __grid_constant__ Group group, std::uint32_t index) {
  if (load_relaxed(&group.progress->failed) != 0) return;
  store_release(&board_of(group, 1 - group.rank).slice_full[group.rank].value,
                group.progress->slices + index + 1);
}

/// By value: a choice between references would put the vectors into memory.
__device__ inline uint4 choose(bool first, uint4 a, uint4 b) {
  return make_uint4(first ? a.x : b.x, first ? a.y : b.y, first ? a.z : b.z, first ? a.w : b.w);
}

template <class T, bool kSum, int kVectors>
__device__ void reduce_vectors(const Group& group, const Slice& slice, const std::byte* staged,
                               std::uint64_t at, std::uint64_t step) {
  uint4 own[kVectors], other[kVectors];
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const std::uint64_t offset = at + i * step;
    own[i] = load_elements<T, uint4>(slice.input + offset, slice.aligned, slice.bytes - offset);
    other[i] = __ldcg(reinterpret_cast<const uint4*>(staged + offset));
  }
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const std::uint64_t offset = at + i * step;
    const bool own_first = group.rank == 0;
    Accumulators<T, uint4, kSum> sums;
    sums.begin(choose(own_first, own[i], other[i]), slice.arithmetic);
    sums.add(choose(own_first, other[i], own[i]), slice.arithmetic);
    store_elements<T, uint4>(slice.output + offset, sums.result(slice.arithmetic, group.size),
                             slice.aligned, slice.bytes - offset);
  }
}

/// The last block to come here gives the slice back and, after the last slice, ends the operation.
__device__ void finish_slice(const Group& group, const Slice& slice) {
  __syncthreads();
  if (threadIdx.x != 0) return;
  Progress& progress = *group.progress;
  const std::uint32_t done = progress.slices + slice.index + 1;
  __threadfence();
  if (atomicAdd(&progress.finished_blocks, 1u) + 1 != gridDim.x) return;
  progress.finished_blocks = 0;
  if (slice.index + 1 == slice.count) progress.slices = done;
  store_release(&board_of(group, 1 - group.rank).slice_emptied[group.rank].value, done);
}

template <class T, bool kSum>
__global__ void __launch_bounds__(kThreads)
    reduce_slice(const __grid_constant__ Group group, const __grid_constant__ Slice slice) {
  __shared__ bool alive;
  const int peer = 1 - group.rank;
  if (threadIdx.x == 0) {
    const auto& flag = board_of(group, group.rank).slice_full[peer].value;
    const std::uint32_t wanted = group.progress->slices + slice.index + 1;
    alive = load_relaxed(&group.progress->failed) == 0 &&
            Watch(group).wait(peer, [&] { return has_reached(load_acquire(&flag), wanted); });
  }
  __syncthreads();
  if (!alive) return;
  const std::byte* staged = group.arena[group.rank] + group.slices_offset + slice.staging_offset;
  const std::uint64_t step = std::uint64_t{gridDim.x} * kThreads * sizeof(uint4);
  std::uint64_t at = (std::uint64_t{blockIdx.x} * kThreads + threadIdx.x) * sizeof(uint4);
  for (; at + (kUnroll - 1) * step < slice.bytes; at += kUnroll * step) {
    reduce_vectors<T, kSum, kUnroll>(group, slice, staged, at, step);
  }
  for (; at < slice.bytes; at += step) {
    reduce_vectors<T, kSum, 1>(group, slice, staged, at, step);
  }
  finish_slice(group, slice);
}

}  // namespace

void launch_slice_wait(const Group& group, std::uint32_t index, std::uint32_t in_flight,
                       StreamView stream) {
  wait_for_slices<<<1, 1, 0, stream.get()>>>(group, index, in_flight);
  check_launch("wait_for_slices");
}

void launch_slice_signal(const Group& group, std::uint32_t index, StreamView stream) {
  signal_slice<<<1, 1, 0, stream.get()>>>(group, index);
  check_launch("signal_slice");
}

void launch_slice_reduce(const Group& group, const Slice& slice, DType dtype, int blocks,
                         StreamView stream) {
  const ReduceOp op = slice.arithmetic.op;
  with_element_type(dtype, [&]<class T>() {
    if (op == ReduceOp::Sum || op == ReduceOp::Average) {
      reduce_slice<T, true><<<blocks, kThreads, 0, stream.get()>>>(group, slice);
    } else {
      reduce_slice<T, false><<<blocks, kThreads, 0, stream.get()>>>(group, slice);
    }
  });
  check_launch("reduce_slice");
}

void load_slice_kernels() {
  for (int dtype = 0; dtype < kDTypeCount; ++dtype) {
    with_element_type(static_cast<DType>(dtype), [&]<class T>() {
      load_kernel(reduce_slice<T, true>);
      load_kernel(reduce_slice<T, false>);
    });
  }
  load_kernel(wait_for_slices);
  load_kernel(signal_slice);
}

}  // namespace tersum::gpu
