// The device side of exchanges by copy engines between two ranks. Copy engines carry slices into
// the peer's staging memory, as large as it takes, and one kernel takes out what has arrived.
//
// It must not wait for the end of a slice: a slice that ends early is a small one, and small copies
// are slow. So the data are their own flags: staging memory is blank, filled with a word that
// stands for nothing, wherever nothing has arrived, and is made blank again behind what has been
// taken. A word that is not blank has arrived. Data that hold this very word, and the end of a run
// that is no whole vector, wait for the end of their slice. A kernel behind the copy tells of it;
// of the last slice another copy tells, which brings the number of the run: that ends sooner.
//
// In place a result may be written only where the own values have left: each block tells the peer's
// block of the same number what has arrived here.
#include "cuda/collective_kernels.hpp"
#include "cuda/collective_launch.cuh"
#include "cuda/error.hpp"
#include "cuda/reduction.cuh"
#include "cuda/signal.cuh"

namespace tersum::gpu {
namespace {

constexpr unsigned kThreads = 512;
constexpr int kVectors = 4;                     // of a thread in a chunk
constexpr std::uint32_t kStep = kThreads * 16;  // bytes from one vector of a thread to the next
constexpr std::uint32_t kChunk = kVectors * kStep;
constexpr unsigned kCopyBlocks = 32;

__global__ void make_blank(uint4* staging, std::uint64_t vectors) {
  const std::uint64_t step = std::uint64_t{gridDim.x} * blockDim.x;
  for (std::uint64_t i = std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < vectors;
       i += step) {
    staging[i] = make_uint4(kBlank, kBlank, kBlank, kBlank);
  }
}

__global__ void wait_for_slot(const __grid_constant__ Group group, std::uint32_t used) {
  if (load_relaxed(&group.progress->failed) != 0) return;
  const int peer = 1 - group.rank;
  const std::uint32_t wanted = group.progress->slices_sent + used;
  const auto& flag = board_of(group, group.rank).slice_emptied[peer].value;
  Watch(group).wait(peer, [&] { return has_reached(load_acquire(&flag), wanted); });
}

__global__ void signal_slice(const __grid_constant__ Group group) {
  Progress& progress = *group.progress;
  if (load_relaxed(&progress.failed) != 0) return;
  const std::uint32_t number = atomicAdd(&progress.slices_signalled, 1u) + 1;
  store_release(&board_of(group, 1 - group.rank).slice_full[group.rank].value, number);
}

/// Does what a copy engine would do, for a run that copy engines might cut inside of words.
template <class T>
__global__ void __launch_bounds__(kThreads)
    copy_slice(std::byte* to, const std::byte* from, std::uint64_t bytes) {
  const std::uint64_t step = std::uint64_t{gridDim.x} * kStep;
  for (std::uint64_t at = (std::uint64_t{blockIdx.x} * kThreads + threadIdx.x) * 16; at < bytes;
       at += step) {
    const auto values = load_elements<T, uint4>(from + at, false, bytes - at);
    store_elements<T, uint4>(to + at, values, true, bytes - at);
  }
}

__device__ inline bool has_arrived(uint4 v) {
  return v.x != kBlank && v.y != kBlank && v.z != kBlank && v.w != kBlank;
}

/// By value: a choice between references would put the vectors into memory.
__device__ inline uint4 choose(bool first, uint4 a, uint4 b) {
  return make_uint4(first ? a.x : b.x, first ? a.y : b.y, first ? a.z : b.z, first ? a.w : b.w);
}

/// A flag, and the number with which it tells that a slice is whole.
struct Whole {
  const std::uint32_t* flag;
  std::uint32_t number;
};

/// A block's work on an operation.
template <class T, bool kCombine, bool kSum>
class Taker {
 public:
  __device__ Taker(const Group& group, const SliceExchange& exchange, bool* alive)
      : group_(group),
        exchange_(exchange),
        board_(board_of(group, group.rank)),
        peer_(1 - group.rank),
        watch_(group),
        alive_(alive) {
    run_ = group.progress->runs_received + 1;
    arrived_ = group.progress->chunks_arrived[blockIdx.x];
    left_ = group.progress->chunks_left[blockIdx.x];
  }

  /// What tells that slice `index` of the run, number `number` of all, is whole.
  __device__ Whole whole(std::uint32_t index, std::uint32_t number) const {
    if (index + 1 == exchange_.shape.count(exchange_.received_bytes)) {
      return {&board_.run_full[peer_].value, run_};
    }
    return {&board_.slice_full[peer_].value, number};
  }

  /// Waits until slices up to `number` have been taken, by all blocks.
  __device__ bool await_taken(std::uint32_t number) {
    const std::uint32_t* taken = &group_.progress->slices_received;
    if (threadIdx.x == 0 &&
        !watch_.wait(peer_, [&] { return has_reached(load_acquire(taken), number); })) {
      *alive_ = false;
    }
    __syncthreads();
    return *alive_;
  }

  /// Takes the chunk at `at` in a slice, which begins at `start` in the run; false if it will not
  /// come.
  __device__ bool take(std::byte* staged, std::uint64_t start, const Whole& whole,
                       std::uint64_t at) {
    const std::uint64_t offset = start + at + threadIdx.x * 16;
    uint4 own[kVectors], values[kVectors];
    if constexpr (kCombine) load(exchange_.own, exchange_.received_bytes, offset, own);
    std::byte* from = staged + at + threadIdx.x * 16;
    if (!await(from, whole, offset, values)) *alive_ = false;
    __syncthreads();
    if (!*alive_) return false;
    ++arrived_;
    if (threadIdx.x == 0) {
      store_relaxed(&board_of(group_, peer_).chunks_left[blockIdx.x].value, arrived_);
    }
    if (exchange_.in_place && !await_own()) return false;
    store(offset, own, values);
    const uint4 blank = make_uint4(kBlank, kBlank, kBlank, kBlank);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      if (offset + i * kStep < exchange_.received_bytes) store_volatile(from + i * kStep, blank);
    }
    return true;
  }

  /// Copies the chunk at `at` of what stays here.
  __device__ void keep(std::uint64_t at) const {
    const std::uint64_t offset = at + threadIdx.x * 16;
    uint4 values[kVectors];
    load(exchange_.own, exchange_.kept_bytes, offset, values);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const std::uint64_t here = offset + i * kStep;
      if (here >= exchange_.kept_bytes) break;
      store_elements<T, uint4>(exchange_.kept + here, values[i], exchange_.aligned,
                               exchange_.kept_bytes - here);
    }
  }

  /// After slice `number`: the last block that has taken its part makes the slot free. What told
  /// that the slice is whole has arrived then, too, and may be used again by the peer.
  __device__ void give_back(std::uint32_t slot, std::uint32_t number, const Whole& whole) {
    __syncthreads();
    if (threadIdx.x != 0) return;
    std::uint32_t& taken = group_.progress->slice_taken[slot];
    __threadfence();
    if (atomicAdd(&taken, 1u) + 1 != gridDim.x) return;
    taken = 0;
    if (!watch_.wait(peer_, [&] { return is_whole(whole); })) return;
    store_release(&group_.progress->slices_received, number);
    store_release(&board_of(group_, peer_).slice_emptied[group_.rank].value, number);
  }

  /// After the operation; what the last block does ends it.
  __device__ void finish() {
    Progress& progress = *group_.progress;
    if (threadIdx.x != 0) return;
    progress.chunks_arrived[blockIdx.x] = arrived_;
    progress.chunks_left[blockIdx.x] += chunks_of(exchange_.sent_bytes);
    __threadfence();
    if (atomicAdd(&progress.finished_blocks, 1u) + 1 != gridDim.x) return;
    progress.finished_blocks = 0;
    const std::uint32_t all = progress.slices_sent + exchange_.shape.count(exchange_.sent_bytes);
    const std::uint32_t* emptied = &board_.slice_emptied[peer_].value;
    if (!watch_.wait(peer_, [&] { return has_reached(load_acquire(emptied), all); })) return;
    progress.slices_sent = all;
    if (exchange_.received_bytes > 0) ++progress.runs_received;
    if (exchange_.sent_bytes == 0) return;
    ++progress.run_number;
    atomicAdd(&progress.slices_signalled, 1u);  // the last one
  }

 private:
  static __device__ bool is_whole(const Whole& whole) {
    return has_reached(load_acquire(whole.flag), whole.number);
  }

  /// Chunks of a run that this block takes.
  __device__ std::uint32_t chunks_of(std::uint64_t run_bytes) const {
    std::uint32_t count = 0;
    for (std::uint32_t i = 0; i < exchange_.shape.count(run_bytes); ++i) {
      const std::uint64_t bytes = exchange_.shape.slice(run_bytes, i).bytes;
      const auto chunks = static_cast<std::uint32_t>((bytes + kChunk - 1) / kChunk);
      if (blockIdx.x < chunks) count += (chunks - blockIdx.x + gridDim.x - 1) / gridDim.x;
    }
    return count;
  }

  __device__ void load(const std::byte* from, std::uint64_t bytes, std::uint64_t offset,
                       uint4 (&values)[kVectors]) const {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const std::uint64_t here = offset + i * kStep;
      if (here < bytes) {
        values[i] = load_elements<T, uint4>(from + here, exchange_.aligned, bytes - here);
      }
    }
  }

  /// Waits for this thread's vectors: the last one of the warp first, so that few threads look for
  /// what is not there yet.
  __device__ bool await(const std::byte* from, const Whole& whole, std::uint64_t offset,
                        uint4 (&values)[kVectors]) {
    const std::uint64_t end = exchange_.received_bytes;
    const auto arrives = [&](int i) {
      const bool is_vector = offset + i * kStep + 16 <= end;
      return watch_.wait(peer_, [&] {
        const bool over = is_whole(whole);
        values[i] = load_volatile(from + i * kStep);
        return over || (is_vector && has_arrived(values[i]));
      });
    };
    bool good = true;
    const std::uint64_t last = offset + (31 - threadIdx.x % 32) * 16 + (kVectors - 1) * kStep;
    if (threadIdx.x % 32 == 31 && last < end) good = arrives(kVectors - 1);
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      if (offset + i * kStep < end) values[i] = load_volatile(from + i * kStep);
    }
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const std::uint64_t here = offset + i * kStep;
      if (here >= end || (here + 16 <= end && has_arrived(values[i]))) continue;
      good = good && arrives(i);
    }
    return good;
  }

  /// Waits until the own values of the chunk have arrived at the peer; all threads of the block.
  __device__ bool await_own() {
    ++left_;
    if (threadIdx.x == 0) {
      const std::uint32_t* flag = &board_.chunks_left[blockIdx.x].value;
      if (!watch_.wait(peer_, [&] { return has_reached(load_relaxed(flag), left_); })) {
        *alive_ = false;
      }
    }
    __syncthreads();
    return *alive_;
  }

  __device__ void store(std::uint64_t offset, const uint4 (&own)[kVectors],
                        const uint4 (&values)[kVectors]) const {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const std::uint64_t here = offset + i * kStep;
      if (here >= exchange_.received_bytes) break;
      uint4 result = values[i];
      if constexpr (kCombine) {
        const bool own_first = group_.rank == 0;
        Accumulators<T, uint4, kSum> sums;
        sums.begin(choose(own_first, own[i], values[i]), exchange_.arithmetic);
        sums.add(choose(own_first, values[i], own[i]), exchange_.arithmetic);
        result = sums.result(exchange_.arithmetic, 2);
      }
      store_elements<T, uint4>(exchange_.output + here, result, exchange_.aligned,
                               exchange_.received_bytes - here);
    }
  }

  const Group& group_;
  const SliceExchange& exchange_;
  Board& board_;
  int peer_;
  Watch watch_;
  bool* alive_;
  std::uint32_t run_, arrived_, left_;
};

template <class T, bool kCombine, bool kSum>
__global__ void __launch_bounds__(kThreads, 1)
    take_slices(const __grid_constant__ Group group,
                const __grid_constant__ SliceExchange exchange) {
  __shared__ bool alive;
  if (load_relaxed(&group.progress->failed) != 0) return;
  if (threadIdx.x == 0) alive = true;
  __syncthreads();
  const SliceShape& shape = exchange.shape;
  const std::uint32_t taken_before = group.progress->slices_received;
  Taker<T, kCombine, kSum> taker(group, exchange, &alive);
  const std::uint64_t end = max(exchange.received_bytes, exchange.kept_bytes);
  for (std::uint32_t index = 0; index < shape.count(end); ++index) {
    const std::uint32_t slot = shape.slot(index), number = taken_before + index + 1;
    const Range slice = shape.slice(end, index);
    const bool comes = slice.offset < exchange.received_bytes;
    std::byte* staged = group.arena[group.rank] + group.slices_offset + slot * shape.slice_bytes;
    const Whole whole = taker.whole(index, number);
    if (comes && shape.reuses_slot(index) && !taker.await_taken(number - shape.slots)) return;
    for (std::uint64_t at = std::uint64_t{blockIdx.x} * kChunk; at < slice.bytes;
         at += std::uint64_t{gridDim.x} * kChunk) {
      const std::uint64_t offset = slice.offset + at;
      if (!kCombine && offset < exchange.kept_bytes) taker.keep(offset);
      if (offset < exchange.received_bytes && !taker.take(staged, slice.offset, whole, at)) {
        return;
      }
    }
    if (comes) taker.give_back(slot, number, whole);
  }
  taker.finish();
}

}  // namespace

void launch_make_blank(std::byte* staging, std::size_t bytes, StreamView stream) {
  make_blank<<<256, 256, 0, stream.get()>>>(reinterpret_cast<uint4*>(staging), bytes / 16);
  check_launch("make_blank");
}

void launch_slot_wait(const Group& group, std::uint32_t used, StreamView stream) {
  wait_for_slot<<<1, 1, 0, stream.get()>>>(group, used);
  check_launch("wait_for_slot");
}

void launch_slice_signal(const Group& group, StreamView stream) {
  signal_slice<<<1, 1, 0, stream.get()>>>(group);
  check_launch("signal_slice");
}

void launch_slice_copy(std::byte* to, const std::byte* from, std::uint64_t bytes, DType dtype,
                       StreamView stream) {
  with_copy_type(dtype, [&]<class T>() {
    copy_slice<T><<<kCopyBlocks, kThreads, 0, stream.get()>>>(to, from, bytes);
  });
  check_launch("copy_slice");
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
    with_copy_type(static_cast<DType>(dtype), []<class T>() {
      load_kernel(take_slices<T, false, true>);
      load_kernel(copy_slice<T>);
    });
    with_element_type(static_cast<DType>(dtype), []<class T>() {
      load_kernel(take_slices<T, true, true>);
      load_kernel(take_slices<T, true, false>);
    });
  }
  load_kernel(wait_for_slot);
  load_kernel(signal_slice);
  load_kernel(make_blank);
}

}  // namespace tersum::gpu
