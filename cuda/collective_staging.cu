// The device side of exchanges by copy engines between two ranks. A copy engine carries a piece
// into the peer's staging memory, and one kernel takes out what has arrived.
//
// It must not wait for the end of the piece, which would cost as much time as the copy. So the data
// are their own flags: staging memory is blank, filled with a word that stands for nothing,
// wherever nothing has arrived, and is made blank again behind what has been taken. A word that is
// not blank has arrived. Data that hold this very word, and the end of a piece that is no whole
// word, wait for the end of the piece, of which another copy tells: it brings the piece's number.
//
// A copy engine starts late behind a kernel. Until then the kernel stores the head of the piece
// itself. Nor does the stream wait for the end of the copies, of which it would learn late: the
// kernel ends when the piece's number has arrived at the peer, and everything has been taken there.
// No other kernel takes part, which could have to wait for this one.
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
static_assert(kMaxBlocks < kThreads - 1,
              "each block of the peer has a thread here, two have others");
constexpr std::uint64_t kCopiesEnd = 1'000'000'000;  // ns within which they do after a failure

__global__ void make_blank(uint4* staging, std::uint64_t vectors) {
  const std::uint64_t step = std::uint64_t{gridDim.x} * blockDim.x;
  for (std::uint64_t i = std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < vectors;
       i += step) {
    staging[i] = make_uint4(kBlank, kBlank, kBlank, kBlank);
  }
}

/// Copy engines might cut words that begin at no multiple of 4 bytes.
template <class T>
__global__ void __launch_bounds__(kThreads)
    copy(std::byte* to, const std::byte* from, std::uint64_t bytes) {
  const std::uint64_t step = std::uint64_t{gridDim.x} * kStep;
  for (std::uint64_t at = (std::uint64_t{blockIdx.x} * kThreads + threadIdx.x) * 16; at < bytes;
       at += step) {
    const auto values = load_elements<T, uint4>(from + at, false, bytes - at);
    *reinterpret_cast<uint4*>(to + at) = values;  // at once: part of a word would look like one
  }
}

/// True if words stand for values in the first `valid` bytes; of part of a word nobody knows.
__device__ inline bool has_arrived(uint4 v, std::uint64_t valid) {
  return valid >= 16 ? v.x != kBlank && v.y != kBlank && v.z != kBlank && v.w != kBlank
                     : valid % 4 == 0 && v.x != kBlank && (valid < 8 || v.y != kBlank) &&
                           (valid < 12 || v.z != kBlank);
}

/// By value: a choice between references would put the vectors into memory.
__device__ inline uint4 choose(bool first, uint4 a, uint4 b) {
  return make_uint4(first ? a.x : b.x, first ? a.y : b.y, first ? a.z : b.z, first ? a.w : b.w);
}

/// What becomes of the values that arrive.
enum class PieceWork {
  Copy,
  PlainSum,  ///< with the own ones, neither scaled nor averaged
  Sum,       ///< or average
  Reduce,    ///< by any operator
};

/// A block's work on an operation.
template <class T, PieceWork kWork>
class Taker {
 public:
  __device__ Taker(const Group& group, const PieceExchange& exchange)
      : group_(group),
        exchange_(exchange),
        board_(board_of(group, group.rank)),
        peer_(1 - group.rank),
        watch_(group) {
    watch_.heed(&board_.peer_failed.value);
    const Progress& progress = *group.progress;
    sent_number_ = progress.pieces_sent[blockIdx.x] + 1;
    number_ = progress.pieces_received[blockIdx.x] + 1;
    arrived_ = progress.chunks_arrived[blockIdx.x];
    left_ = progress.chunks_left[blockIdx.x];
  }

  /// Loads this block's first chunk of the head, for push_head().
  __device__ void load_head(uint4 (&values)[kVectors]) const {
    load(exchange_.sent, exchange_.sent_head, chunk() + threadIdx.x * 16, values);
  }

  /// Stores this block's part of the head, be it empty, at the peer.
  __device__ void push_head(uint4 (&values)[kVectors]) const {
    if (exchange_.sent_bytes == 0) return;
    const std::uint64_t head = exchange_.sent_head;
    std::byte* const to = group_.arena[peer_] + group_.staging_offset;
    for (std::uint64_t at = chunk(); at < head; at += step()) {
      const std::uint64_t offset = at + threadIdx.x * 16;
      if (at != chunk()) load(exchange_.sent, head, offset, values);
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        if (offset + i * kStep < head) store_volatile(to + offset + i * kStep, values[i]);
      }
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      store_release(&board_of(group_, peer_).head_full[blockIdx.x].value, sent_number_);
    }
  }

  /// Takes this block's part of the piece. False if it will not come.
  __device__ bool take_all() {
    std::byte* const staged = group_.arena[group_.rank] + group_.staging_offset;
    const std::uint64_t end = max(exchange_.received_bytes, exchange_.kept_bytes);
    for (std::uint64_t at = chunk(); at < end; at += step()) {
      if (kWork == PieceWork::Copy && at < exchange_.kept_bytes) keep(at);
      if (at >= exchange_.received_bytes) continue;
      const bool in_head = at < exchange_.received_head;
      const Flag& whole = in_head ? board_.head_full[blockIdx.x] : board_.piece_full;
      if (!take(staged, at, &whole.value)) return false;
    }
    if (exchange_.received_bytes > 0) give_back();
    return true;
  }

  /// After the operation, or what was possible of it. The first block does not end, and so the
  /// kernel does not, before copy engines have read everything.
  __device__ void finish(bool good) {
    Progress& progress = *group_.progress;
    if (threadIdx.x == 0) {
      if (!good) tell_failure();
      if (exchange_.sent_bytes > 0) progress.pieces_sent[blockIdx.x] = sent_number_;
      if (exchange_.received_bytes > 0) progress.pieces_received[blockIdx.x] = number_;
      progress.chunks_arrived[blockIdx.x] = arrived_;
      progress.chunks_left[blockIdx.x] += chunks_of(exchange_.sent_bytes);
    } else if (threadIdx.x == kThreads - 1 && good && exchange_.received_bytes > 0) {
      check_peer();
    }
    if (blockIdx.x == 0 && exchange_.sent_bytes > 0) await_sent();
  }

  /// Copy engines go on in a failed group: the peer must not take what they bring for good.
  __device__ void tell_failure() const {
    store_release(&board_of(group_, peer_).peer_failed.value, 1);
  }

 private:
  /// Fails unless the peer's kernel was well when it began, and is now: what has arrived is what it
  /// sent, then.
  __device__ void check_peer() {
    const std::uint32_t* head = &board_.head_full[blockIdx.x].value;
    if (!watch_.wait(peer_, [&] { return has_reached(load_acquire(head), number_); })) {
      return tell_failure();
    }
    if (load_acquire(&board_.peer_failed.value) != 0) watch_.fail(Code::PeerLost, peer_);
  }

  /// Waits until what is sent has arrived at the peer, and been taken; all threads of the block.
  __device__ void await_sent() {
    std::uint32_t& number = group_.progress->piece_number;
    if (threadIdx.x < gridDim.x) {
      const std::uint32_t* flag = &board_.piece_emptied[threadIdx.x].value;
      if (!watch_.wait(peer_, [&] { return has_reached(load_acquire(flag), number); })) {
        tell_failure();
      }
    } else if (threadIdx.x == kMaxBlocks) {
      const std::uint32_t* flag = &board_of(group_, peer_).piece_full.value;
      const auto is_read = [&] { return has_reached(load_acquire(flag), number); };
      if (!watch_.wait(peer_, is_read)) {  // copy engines go on, and end soon
        const std::uint64_t end = global_time() + kCopiesEnd;
        while (!is_read() && global_time() < end) {
        }
      }
    }
    __syncthreads();
    if (threadIdx.x == 0) ++number;
  }

  /// Where this block begins in a piece, and how far it is to its next chunk.
  static __device__ std::uint64_t chunk() {
    return std::uint64_t{blockIdx.x} * kChunk;
  }
  static __device__ std::uint64_t step() {
    return std::uint64_t{gridDim.x} * kChunk;
  }

  /// Takes the chunk at `at`, which is here when `whole` has come to this piece. False if it will
  /// not come.
  __device__ bool take(std::byte* staged, std::uint64_t at, const std::uint32_t* whole) {
    if (!exchange_.in_place) tell_arrived();
    const std::uint64_t offset = at + threadIdx.x * 16;
    uint4 own[kVectors], values[kVectors];
    if constexpr (kWork != PieceWork::Copy)
      load(exchange_.own, exchange_.received_bytes, offset, own);
    std::byte* const from = staged + offset;
    if (!__syncthreads_and(await(from, whole, offset, values))) return false;
    ++arrived_;
    if (exchange_.in_place) {
      tell_arrived();
      if (!await_own()) return false;
    }
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

  /// After this block's part of the piece.
  __device__ void give_back() {
    __syncthreads();
    if (threadIdx.x == 0) {
      store_release(&board_of(group_, peer_).piece_emptied[blockIdx.x].value, number_);
    }
    tell_arrived();
  }

  /// Tells the peer's block which chunks have arrived. It waits for that in place only, which is
  /// not known here. Out of place here nothing waits for the store: it is not before a fence.
  __device__ void tell_arrived() const {
    if (threadIdx.x == 0) {
      store_relaxed(&board_of(group_, peer_).chunks_left[blockIdx.x].value, arrived_);
    }
  }

  /// Chunks of a piece that are a block's.
  static __device__ std::uint32_t chunks_of(std::uint64_t bytes) {
    const auto chunks = static_cast<std::uint32_t>((bytes + kChunk - 1) / kChunk);
    return blockIdx.x < chunks ? (chunks - blockIdx.x + gridDim.x - 1) / gridDim.x : 0;
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
  __device__ bool await(const std::byte* from, const std::uint32_t* whole, std::uint64_t offset,
                        uint4 (&values)[kVectors]) {
    const std::uint64_t end = exchange_.received_bytes;
    const auto arrives = [&](int i) {
      const std::uint64_t valid = end - (offset + i * kStep);
      return watch_.wait(peer_, [&] {
        const bool over = has_reached(load_acquire(whole), number_);
        values[i] = load_volatile(from + i * kStep);
        return over || has_arrived(values[i], valid);
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
      if (here >= end || has_arrived(values[i], end - here)) continue;
      good = good && arrives(i);
    }
    return good;
  }

  /// True when the own values of the chunk have arrived at the peer; all threads of the block.
  __device__ bool await_own() {
    ++left_;
    const std::uint32_t* flag = &board_.chunks_left[blockIdx.x].value;
    const auto has_left = [&] { return has_reached(load_relaxed(flag), left_); };
    return __syncthreads_and(threadIdx.x != 0 || watch_.wait(peer_, has_left));
  }

  __device__ void store(std::uint64_t offset, const uint4 (&own)[kVectors],
                        const uint4 (&values)[kVectors]) const {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const std::uint64_t here = offset + i * kStep;
      if (here >= exchange_.received_bytes) break;
      uint4 result = values[i];
      if constexpr (kWork != PieceWork::Copy) {
        const bool own_first = group_.rank == 0;
        Accumulators<T, uint4, kWork != PieceWork::Reduce, kWork == PieceWork::PlainSum> sums;
        sums.begin(choose(own_first, own[i], values[i]), exchange_.arithmetic);
        sums.add(choose(own_first, values[i], own[i]), exchange_.arithmetic);
        result = sums.result(exchange_.arithmetic, 2);
      }
      store_elements<T, uint4>(exchange_.output + here, result, exchange_.aligned,
                               exchange_.received_bytes - here);
    }
  }

  const Group& group_;
  const PieceExchange& exchange_;
  Board& board_;
  int peer_;
  Watch watch_;
  std::uint32_t sent_number_, number_, arrived_, left_;
};

template <class T, PieceWork kWork>
__global__ void __launch_bounds__(kThreads, 1)
    exchange_piece(const __grid_constant__ Group group,
                   const __grid_constant__ PieceExchange exchange) {
  begin_after_previous();
  const bool failed = threadIdx.x == 0 && load_relaxed(&group.progress->failed) != 0;
  Taker<T, kWork> taker(group, exchange);
  uint4 head[kVectors];
  taker.load_head(head);
  bool good = !__syncthreads_or(failed);
  if (good) {
    taker.push_head(head);
    good = taker.take_all();
  }
  taker.finish(good);
}

}  // namespace

void launch_make_blank(std::byte* staging, std::size_t bytes, StreamView stream) {
  make_blank<<<256, 256, 0, stream.get()>>>(reinterpret_cast<uint4*>(staging), bytes / 16);
  check_launch("make_blank");
}

void launch_copy(std::byte* to, const std::byte* from, std::uint64_t bytes, DType dtype,
                 StreamView stream) {
  with_copy_type(dtype, [&]<class T>() {
    copy<T><<<kCopyBlocks, kThreads, 0, stream.get()>>>(to, from, bytes);
  });
  check_launch("copy");
}

void launch_piece(const Group& group, const PieceExchange& exchange, DType dtype, int blocks,
                  StreamView stream) {
  const auto go = [&](auto kernel) {
    launch(kernel, static_cast<unsigned>(blocks), kThreads, group.early, stream, group, exchange);
  };
  if (!exchange.combine) {
    return with_copy_type(dtype, [&]<class T>() { go(exchange_piece<T, PieceWork::Copy>); });
  }
  const Arithmetic& arithmetic = exchange.arithmetic;
  const bool scaled = arithmetic.pre_scale != 1.0 || arithmetic.post_scale != 1.0;
  with_element_type(dtype, [&]<class T>() {
    if (arithmetic.op == ReduceOp::Sum && !scaled) {
      go(exchange_piece<T, PieceWork::PlainSum>);
    } else if (arithmetic.op == ReduceOp::Sum || arithmetic.op == ReduceOp::Average) {
      go(exchange_piece<T, PieceWork::Sum>);
    } else {
      go(exchange_piece<T, PieceWork::Reduce>);
    }
  });
}

void load_staging_kernels() {
  for (int dtype = 0; dtype < kDTypeCount; ++dtype) {
    with_copy_type(static_cast<DType>(dtype), []<class T>() {
      load_kernel(exchange_piece<T, PieceWork::Copy>);
      load_kernel(copy<T>);
    });
    with_element_type(static_cast<DType>(dtype), []<class T>() {
      load_kernel(exchange_piece<T, PieceWork::PlainSum>);
      load_kernel(exchange_piece<T, PieceWork::Sum>);
      load_kernel(exchange_piece<T, PieceWork::Reduce>);
    });
  }
  load_kernel(make_blank);
}

}  // namespace tersum::gpu
