// The device side of exchanges by copy engines between two ranks: copy engines carry slices into
// the peer's staging memory; one kernel takes them out as they arrive, and small ones say that a
// slice has arrived and wait until there is room for more.
//
// One kernel for all slices, not one for each: what waits in a stream for what copy engines do
// comes some microseconds late each time.
#include "cuda/collective_kernels.hpp"
#include "cuda/collective_launch.cuh"
#include "cuda/error.hpp"
#include "cuda/reduction.cuh"
#include "cuda/signal.cuh"

namespace tersum::gpu {
namespace {

constexpr int kThreads = 512;
constexpr int kUnroll = 4;

__global__ void wait_for_slots(const __grid_constant__ Group group, std::uint32_t used) {
  if (load_relaxed(&group.progress->failed) != 0) return;
  const int peer = 1 - group.rank;
  const std::uint32_t wanted = group.progress->slices_sent + used;
  const auto& flag = board_of(group, group.rank).slice_emptied[peer].value;
  Watch(group).wait(peer, [&] { return has_reached(load_acquire(&flag), wanted); });
}

__global__ void signal_slice(const __grid_constant__ Group group, std::uint32_t index) {
  if (load_relaxed(&group.progress->failed) != 0) return;
  const std::uint32_t number = group.progress->slices_sent + index + 1;
  store_release(&board_of(group, 1 - group.rank).slice_full[group.rank].value, number);
  store_release(&group.progress->slices_copied, number);
}

/// By value: a choice between references would put the vectors into memory.
__device__ inline uint4 choose(bool first, uint4 a, uint4 b) {
  return make_uint4(first ? a.x : b.x, first ? a.y : b.y, first ? a.z : b.z, first ? a.w : b.w);
}

/// Takes `range` of the run out of `from`; with kCombine together with the own values.
template <class T, bool kCombine, bool kSum, int kVectors>
__device__ void take_vectors(const SliceExchange& exchange, int rank, std::byte* to,
                             const std::byte* from, bool aligned_from, const Range& range,
                             std::uint64_t at, std::uint64_t step) {
  uint4 own[kVectors], other[kVectors];
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const std::uint64_t offset = at + i * step;
    if (kCombine) {
      own[i] = load_elements<T, uint4>(exchange.own + range.offset + offset, exchange.aligned,
                                       range.bytes - offset);
    }
    other[i] = aligned_from
                   ? __ldcg(reinterpret_cast<const uint4*>(from + offset))
                   : load_elements<T, uint4>(from + offset, exchange.aligned, range.bytes - offset);
  }
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const std::uint64_t offset = at + i * step;
    uint4 result = other[i];
    if constexpr (kCombine) {
      Accumulators<T, uint4, kSum> sums;
      sums.begin(choose(rank == 0, own[i], other[i]), exchange.arithmetic);
      sums.add(choose(rank == 0, other[i], own[i]), exchange.arithmetic);
      result = sums.result(exchange.arithmetic, 2);
    }
    store_elements<T, uint4>(to + range.offset + offset, result, exchange.aligned,
                             range.bytes - offset);
  }
}

/// `aligned_from` says that `from` gives whole vectors, even beyond the end (a slot).
template <class T, bool kCombine, bool kSum>
__device__ void take(const SliceExchange& exchange, int rank, std::byte* to, const std::byte* from,
                     bool aligned_from, const Range& range) {
  const std::uint64_t step = std::uint64_t{gridDim.x} * kThreads * sizeof(uint4);
  std::uint64_t at = (std::uint64_t{blockIdx.x} * kThreads + threadIdx.x) * sizeof(uint4);
  for (; at + (kUnroll - 1) * step < range.bytes; at += kUnroll * step) {
    take_vectors<T, kCombine, kSum, kUnroll>(exchange, rank, to, from, aligned_from, range, at,
                                             step);
  }
  for (; at < range.bytes; at += step) {
    take_vectors<T, kCombine, kSum, 1>(exchange, rank, to, from, aligned_from, range, at, step);
  }
}

/// Waits until the own slice `index` has been copied, so that what it came from may be written, and
/// until the peer's slice is here. For one thread.
__device__ bool await_slice(const Group& group, Watch& watch, bool sent, std::uint32_t sent_number,
                            bool received, std::uint32_t received_number) {
  const std::uint32_t* copied = &group.progress->slices_copied;
  const int peer = 1 - group.rank;
  const std::uint32_t* full = &board_of(group, group.rank).slice_full[peer].value;
  return (!sent ||
          watch.wait(-1, [&] { return has_reached(load_acquire(copied), sent_number); })) &&
         (!received ||
          watch.wait(peer, [&] { return has_reached(load_acquire(full), received_number); }));
}

/// The last block that has taken its part of a slice gives the slot back.
__device__ void give_back(const Group& group, std::uint32_t slot, std::uint32_t number) {
  std::uint32_t& taken = group.progress->slice_taken[slot];
  __threadfence();
  if (atomicAdd(&taken, 1u) + 1 != gridDim.x) return;
  taken = 0;
  store_release(&board_of(group, 1 - group.rank).slice_emptied[group.rank].value, number);
}

template <class T, bool kCombine, bool kSum>
__global__ void __launch_bounds__(kThreads)
    take_slices(const __grid_constant__ Group group,
                const __grid_constant__ SliceExchange exchange) {
  __shared__ bool alive;
  Progress& progress = *group.progress;
  if (load_relaxed(&progress.failed) != 0) return;
  const std::uint32_t sent_before = progress.slices_sent;
  const std::uint32_t received_before = progress.slices_received;
  const std::byte* staging = group.arena[group.rank] + group.slices_offset;
  Watch watch(group);
  Range sent{}, received{}, kept{};
  std::uint32_t sent_count = 0, received_count = 0;
  for (std::uint32_t index = 0;; ++index) {
    sent = next_slice(sent, exchange.sent_bytes, exchange.shape);
    received = next_slice(received, exchange.received_bytes, exchange.shape);
    kept = next_slice(kept, exchange.kept_bytes, exchange.shape);
    if (sent.bytes + received.bytes + kept.bytes == 0) break;
    sent_count += sent.bytes > 0 ? 1 : 0;
    received_count += received.bytes > 0 ? 1 : 0;
    if (!kCombine) {
      take<T, false, kSum>(exchange, group.rank, exchange.kept, exchange.own + kept.offset, false,
                           kept);
    }
    if (threadIdx.x == 0) {
      alive = await_slice(group, watch, sent.bytes > 0, sent_before + sent_count,
                          received.bytes > 0, received_before + received_count);
    }
    __syncthreads();
    if (!alive) return;
    const std::uint32_t slot = index % exchange.shape.slots;
    take<T, kCombine, kSum>(exchange, group.rank, exchange.output,
                            staging + slot * exchange.shape.largest, true, received);
    __syncthreads();
    if (threadIdx.x == 0 && received.bytes > 0) {
      give_back(group, slot, received_before + received_count);
    }
  }
  if (threadIdx.x != 0 || atomicAdd(&progress.finished_blocks, 1u) + 1 != gridDim.x) return;
  progress.finished_blocks = 0;  // all have read where they began
  progress.slices_sent = sent_before + sent_count;
  progress.slices_received = received_before + received_count;
}

}  // namespace

void launch_slot_wait(const Group& group, std::uint32_t used, StreamView stream) {
  wait_for_slots<<<1, 1, 0, stream.get()>>>(group, used);
  check_launch("wait_for_slots");
}

void launch_slice_signal(const Group& group, std::uint32_t index, StreamView stream) {
  signal_slice<<<1, 1, 0, stream.get()>>>(group, index);
  check_launch("signal_slice");
}

void launch_slices(const Group& group, const SliceExchange& exchange, DType dtype, int blocks,
                   StreamView stream) {
  const auto go = [&](auto kernel) {
    launch(kernel, static_cast<unsigned>(blocks), kThreads, false, stream, group, exchange);
  };
  if (!exchange.combine) {
    return with_copy_type(dtype, [&]<class T>() { go(take_slices<T, false, true>); });
  }
  const ReduceOp op = exchange.arithmetic.op;
  with_element_type(dtype, [&]<class T>() {
    if (op == ReduceOp::Sum || op == ReduceOp::Average) {
      go(take_slices<T, true, true>);
    } else {
      go(take_slices<T, true, false>);
    }
  });
}

void load_slice_kernels() {
  for (int dtype = 0; dtype < kDTypeCount; ++dtype) {
    with_copy_type(static_cast<DType>(dtype),
                   []<class T>() { load_kernel(take_slices<T, false, true>); });
    with_element_type(static_cast<DType>(dtype), []<class T>() {
      load_kernel(take_slices<T, true, true>);
      load_kernel(take_slices<T, true, false>);
    });
  }
  load_kernel(wait_for_slots);
  load_kernel(signal_slice);
}

}  // namespace tersum::gpu
