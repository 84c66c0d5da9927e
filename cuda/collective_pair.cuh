// Exchanges in cells between two ranks: the kernels for which every instruction counts. What is
// known before the launch is computed by the host: generic code (runs and peers indexed in the
// kernel's parameters) costs more than a microsecond.
#pragma once

#include "cuda/collective_cells.cuh"

namespace tersum::gpu {

/// Rounds that are sent ahead of the one that is taken.
inline constexpr std::uint32_t kPairLead = 1;

/// One rank's part of an exchange between two.
struct PairExchange {
  Progress* progress;
  const std::byte* sent;   ///< values for the peer
  const std::byte* own;    ///< values that stay; the same in an all-reduce
  std::byte* outbox;       ///< of cells at the peer, even side
  const std::byte* inbox;  ///< of the peer's cells
  std::byte* output;       ///< of what comes from the peer, or of the reduction with it
  std::byte* kept;         ///< where `own` goes if nothing is reduced
  std::uint32_t sent_bytes, received_bytes, kept_bytes;
  std::uint32_t side_bytes;  ///< from the even side to the odd one
  std::uint32_t rounds;      ///< of kSpans spans for each warp
  int rank;
  bool aligned;
  std::uint32_t* show;         ///< flag at the peer, if no data go there; else null
  const std::uint32_t* watch;  ///< flag of the peer, if no data come; else null
  Mailbox* mailbox;
  std::uint64_t timeout_ns;
  Arithmetic arithmetic;
};

/// What a pair kernel does with values.
enum class PairWork {
  Copy,
  PlainCopy,  ///< of whole vectors
  PlainSum,   ///< of whole vectors, neither scaled nor averaged
  Sum,
  Reduce,
};

constexpr bool is_plain(PairWork work) {
  return work == PairWork::PlainCopy || work == PairWork::PlainSum;
}

constexpr bool is_copy(PairWork work) {
  return work == PairWork::PlainCopy || work == PairWork::Copy;
}

/// A round of a warp: up to kSpans spans, all of which are loaded, then sent or reduced.
template <class Cell, class T, int kSpans, bool kPlain>
class PairRound {
 public:
  using Data = typename Cell::Data;
  static constexpr Vectors kVectors = kPlain ? Vectors::Whole : Vectors::Any;

  __device__ PairRound(const PairExchange& pair, std::uint32_t round)
      : pair_(pair), first_(first_span() + round * kSpans * span_step()) {}

  __device__ void load(const std::byte* from, std::uint32_t bytes, Data (&data)[kSpans]) const {
    for_each(bytes, [&](int i, std::uint32_t span) {
      data[i] = Cell::template load<T, kVectors>(from, span, pair_.aligned, bytes);
      return true;
    });
  }

  __device__ void send(std::uint32_t tag, const Data (&data)[kSpans]) const {
    std::byte* box = pair_.outbox + (tag & 1) * pair_.side_bytes;
    for_each(pair_.sent_bytes, [&](int i, std::uint32_t span) {
      Cell::send(box, span, data[i], tag, pair_.sent_bytes);
      return true;
    });
  }

  __device__ void keep() const {
    for_each(pair_.kept_bytes, [&](int, std::uint32_t span) {
      const Data data =
          Cell::template load<T, kVectors>(pair_.own, span, pair_.aligned, pair_.kept_bytes);
      Cell::template store<T, kVectors>(pair_.kept, span, data, pair_.aligned, pair_.kept_bytes);
      return true;
    });
  }

  /// Waits for what the peer has sent; false if it will not come.
  template <bool kCombine, bool kSum>
  __device__ bool receive(Watch& watch, std::uint32_t tag, const Data (&own)[kSpans]) const {
    const std::byte* box = pair_.inbox + (tag & 1) * pair_.side_bytes;
    return for_each(pair_.received_bytes, [&](int i, std::uint32_t span) {
      Data data;
      if (!Cell::await(watch, 1 - pair_.rank, box, span, tag, pair_.received_bytes, data)) {
        return false;
      }
      if constexpr (kCombine) {
        const bool own_first = pair_.rank == 0;
        Accumulators<T, Data, kSum, kPlain> sums;
        sums.begin(Cell::choose(own_first, own[i], data), pair_.arithmetic);
        sums.add(Cell::choose(own_first, data, own[i]), pair_.arithmetic);
        data = sums.result(pair_.arithmetic, 2);
      }
      Cell::template store<T, kVectors>(pair_.output, span, data, pair_.aligned,
                                        pair_.received_bytes);
      return true;
    });
  }

 private:
  template <class Function>
  __device__ bool for_each(std::uint32_t bytes, Function function) const {
#pragma unroll
    for (int i = 0; i < kSpans; ++i) {
      const std::uint32_t span = first_ + static_cast<std::uint32_t>(i) * span_step();
      if (span * Cell::kSpan >= bytes) break;
      if (!function(i, span)) return false;
    }
    return true;
  }

  const PairExchange& pair_;
  std::uint32_t first_;
};

/// Sends a part of the runs and takes the peer's: all spans of a round are sent before the first is
/// waited for. With kMany there are several rounds, and what is sent runs ahead of what is taken,
/// so that the link never waits for the sums.
template <class Cell, class T, PairWork kWork, int kSpans, bool kMany>
__global__ void __launch_bounds__(Cell::kThreads, 1)
    exchange_pair(const __grid_constant__ PairExchange pair) {
  using Round = PairRound<Cell, T, kSpans, is_plain(kWork)>;
  constexpr bool kCombine = !is_copy(kWork);
  constexpr bool kSum = kWork == PairWork::PlainSum || kWork == PairWork::Sum;
  warm_parameters(pair);
  const Round first(pair, 0);
  begin_after_previous();
  const std::uint32_t tag = next_tag(pair.progress);
  typename Cell::Data sent[kSpans], own[kSpans];
  first.load(pair.sent, pair.sent_bytes, sent);
  if constexpr (kCombine && !kMany) {
#pragma unroll
    for (int i = 0; i < kSpans; ++i) own[i] = sent[i];
    if (pair.own != pair.sent) first.load(pair.own, pair.received_bytes, own);
  }
  first.send(tag, sent);
  if (pair.show != nullptr && blockIdx.x == 0 && threadIdx.x == 0) store_release(pair.show, tag);
  count(pair.progress, tag);
  Watch watch(pair.progress, pair.mailbox, pair.timeout_ns);
  const auto take = [&](const Round& round) {
    if constexpr (!kCombine) round.keep();
    return round.template receive<kCombine, kSum>(watch, tag, own);
  };
  if constexpr (!kMany) {
    if (!take(first)) return;
  } else {
    for (std::uint32_t i = 1; i < pair.rounds + kPairLead; ++i) {
      if (i < pair.rounds) {
        const Round round(pair, i);
        round.load(pair.sent, pair.sent_bytes, sent);
        round.send(tag, sent);
      }
      if (i < kPairLead) continue;
      const Round round(pair, i - kPairLead);
      if constexpr (kCombine) round.load(pair.own, pair.received_bytes, own);
      if (!take(round)) return;
    }
  }
  if (pair.watch != nullptr && blockIdx.x == 0 && threadIdx.x == 0) {
    watch.wait(1 - pair.rank, [&] { return has_reached(load_acquire(pair.watch), tag); });
  }
}

}  // namespace tersum::gpu
