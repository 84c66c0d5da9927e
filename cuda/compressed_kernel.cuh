// The kernel of compressed all-reduces, for any codec of tiles.
//
// Each warp works on its own, together with the warps of the same number on the other ranks. In
// turn i it encodes run i (one or two tiles) of the others' shares straight into their queues,
// takes run i - 1 of its own share: encodes what this rank has of it, adds what the others have
// sent, encodes the sum into the others' queues and decodes it into the output; then it decodes run
// i - 2 of the others' shares. So what it waits for was sent a turn ago, and the wire, both codecs
// and memory are busy at once with what different warps do.
//
// Three slots are enough, and nobody says when one is free: a rank that sends run i has finished
// run i - 3; so it had been given the sums of that run, for which their owner had taken out what
// was in the slot; and an owner stores sums of run i only when that rank has sent run i.
//
// What a rank has for itself does not leave its registers, but is encoded all the same: it loses
// what the others' values lose. Code is kept short: what is rare is apart, because straight-line
// code of many kilobytes is fetched slower than it runs.
#pragma once

#include <algorithm>

#include "cuda/collective_launch.cuh"
#include "cuda/compressed_kernels.hpp"
#include "cuda/compressed_tile.cuh"
#include "cuda/signal.cuh"

namespace tersum::gpu {

/// Waits for a flag. Apart from the rest, which needs its registers.
static __device__ __noinline__ bool wait_long(const TileGroup& group, int peer,
                                              const std::uint32_t* flag, std::uint32_t wanted) {
  Watch watch(group.progress, group.mailbox, group.timeout_ns);
  return watch.wait(peer, [&] { return has_reached(load_relaxed(flag), wanted); });
}

/// Ends the group's work: rank `peer` has sent what no encoder makes.
static __device__ __noinline__ void refuse_payload(const TileGroup& group, int peer) {
  report_failure(group.progress, group.mailbox, Code::Protocol, peer);
}

/// Averages of 3, 5, 6 or 7 ranks; apart because divisions are long.
static __device__ __noinline__ Elements divide_all(Elements x, float divisor) {
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) x.of_lane[i] = __fdiv_rn(x.of_lane[i], divisor);
  return x;
}

/// One warp's way through an operation.
template <class Codec>
class TileWorker {
 public:
  using Coded = typename Codec::Coded;
  using Context = typename Codec::Context;
  using Rows = typename Codec::Rows;
  using Staged = StagedTiles<Codec::kFeedback ? 2 : 1>;

  /// `staged` is shared memory of this warp.
  __device__ TileWorker(const TileGroup& group, const TileCall& call, Staged* staged)
      : group_(group),
        call_(call),
        staged_(staged),
        once_(used_once()),
        warp_(threadIdx.x / 32 * gridDim.x + blockIdx.x),  // few tiles go to many multiprocessors
        warps_(gridDim.x * kTileWarps),
        runs_at_(group.runs_of(warp_)) {}

  __device__ void run() {
    const std::uint32_t turns = count_runs(call_.runs);
    if (turns == 0) return;
    base_ = group_.tiles->finished[warp_];
    const Context context(call_);
    find_flags();
    std::uint32_t slot = base_ % kRunSlots;  // of the run that is sent
    fetch_next();
    for (std::uint32_t turn = 0; turn < turns + 2; ++turn) {
      const std::uint32_t next = slot + 1 < kRunSlots ? slot + 1 : 0;
      const std::uint32_t last = slot > 0 ? slot - 1 : kRunSlots - 1;
      if (turn <= turns) send(turn, slot, context);
      if (!await(turn)) return;
      if (turn <= turns) reduce(turn - 1, last, context);
      const Coded first = load_coded(Way::ToAll, after(1), next, 0);
      signal(turn);
      if (turn >= 2) gather(turn - 2, next, first);  // the one before the last
      slot = next;
    }
    if (lane_id() == 0) group_.tiles->finished[warp_] = base_ + turns;
    context.finish(call_, min(warps_, call_.runs));
  }

 private:
  /// Tile `index` of this warp's run `run`; there is none in run -1.
  __device__ Tile tile(int owner, std::uint32_t run, std::uint32_t index) const {
    return tile_of(call_, owner, (run * warps_ + warp_) * call_.run + index);
  }
  /// This warp's part of `runs`.
  __device__ std::uint32_t count_runs(std::uint32_t runs) const {
    return warp_ < runs ? (runs - warp_ - 1) / warps_ + 1 : 0;
  }
  __device__ int after(int distance) const {
    const int rank = group_.rank + distance;
    return rank < group_.size ? rank : rank - group_.size;
  }

  /// In `owner`'s memory: the queue of a way from `source`.
  __device__ std::byte* run_at(Way way, int owner, int source, std::uint32_t slot) const {
    const std::uint32_t run = group_.queue(way, owner, source) * kRunSlots + slot;
    return group_.arena[owner] + runs_at_ + run * kRunBytes;
  }

  /// What is fetched next: steps follow each other as they are taken.
  struct Step {
    std::uint32_t turn = 0;
    int distance = 1;  // of the share's owner; 1 to size, the last is this rank
    std::uint32_t index = 0;
    bool is_sum = false;  // with feedback: the residual of a sum
  };

  /// Begins to fetch what the next step needs of a whole tile.
  __device__ void fetch_next() {
    const bool own = next_.distance >= group_.size;
    const Tile part =
        tile(after(own ? 0 : next_.distance), next_.turn - (own ? 1 : 0), next_.index);
    buffer_ ^= 1;
    Staged& to = staged_[buffer_];
    if (part.whole) {
      if (!next_.is_sum) to.fetch(0, call_.input, part, once_);
      if constexpr (Codec::kFeedback) {
        const float* residual = next_.is_sum ? call_.reducer.residual : call_.sender.residual;
        if (residual != nullptr) to.fetch(1, residual, part, once_);
      }
    }
    Staged::end_group();
    next_.is_sum = Codec::kFeedback && own && !next_.is_sum;
    if (next_.is_sum || ++next_.index < call_.run) return;
    next_.index = 0;
    if (++next_.distance <= group_.size) return;
    next_.distance = 1;
    ++next_.turn;
  }

  /// Returns what was fetched for this step when it is there, and begins to fetch for the next.
  __device__ const Staged& arrived() {
    const Staged& staged = staged_[buffer_];
    __syncwarp();  // all have read what is fetched into now
    fetch_next();
    Staged::await_all_but_last();
    return staged;
  }

  __device__ void load_input(float (&x)[kPerLane], const Tile& part) {
    const Staged& staged = arrived();
    if (part.count == 0) return;
    load_tile<Rows>(x, staged.elements[0], call_.input, part);
    if (Codec::kFeedback) add_residual(x, staged, call_.sender, part);
  }

  __device__ void add_residual(float (&x)[kPerLane], const Staged& staged, const TileMemory& memory,
                               const Tile& part) const {
    if (memory.residual == nullptr) return;
    float e[kPerLane];
    load_tile<Rows>(e, staged.elements[Codec::kFeedback ? 1 : 0], memory.residual, part);
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      float unused;
      x[i] = sum_of<Source::Residual, Codec::kNan>(x[i], e[i], 0, 0, unused);
    }
  }

  /// Run `run` of the others' shares.
  __device__ void send(std::uint32_t run, std::uint32_t slot, const Context& context) {
    for (int distance = 1; distance < group_.size; ++distance) {
      const int owner = after(distance);
      std::byte* queue = run_at(Way::ToOwner, owner, group_.rank, slot);
      for (std::uint32_t index = 0; index < call_.run; ++index) {
        const Tile part = tile(owner, run, index);
        float x[kPerLane], value[kPerLane];
        load_input(x, part);
        if (part.count == 0) continue;
        const Coded coded = Codec::encode(x, value, part, call_, context, call_.world_rank);
        Codec::store(coded, call_, queue + index * kTileBytes);
        keep(x, call_.sender, part);
      }
    }
  }

  __device__ void keep(const float (&left)[kPerLane], const TileMemory& memory,
                       const Tile& part) const {
    if (Codec::kFeedback && memory.residual_next != nullptr) {
      store_tile<Rows>(left, memory.residual_next, part);
    }
  }

  /// Run `run` of the own share.
  __device__ void reduce(std::uint32_t run, std::uint32_t slot, const Context& context) {
    for (std::uint32_t index = 0; index < call_.run; ++index) {
      const Tile part = tile(group_.rank, run, index);
      Coded next = load_coded(Way::ToOwner, first_source(), slot, index);
      float x[kPerLane], sum[kPerLane];
      load_input(x, part);
      if (part.count > 0) {
        Codec::encode(x, sum, part, call_, context, call_.world_rank);
        keep(x, call_.sender, part);
        add_others(sum, part, slot, index, next);
      }
      if constexpr (Codec::kFeedback) {
        const Staged& staged = arrived();
        if (part.count > 0) add_residual(sum, staged, call_.reducer, part);
      }
      if (part.count == 0) continue;
      const Coded coded = Codec::encode(sum, x, part, call_, context, kReducerRank);
      for (int distance = 1; distance < group_.size; ++distance) {
        Codec::store(coded, call_,
                     run_at(Way::ToAll, after(distance), group_.rank, slot) + index * kTileBytes);
      }
      keep(sum, call_.reducer, part);
      Codec::keep_poison(coded, x);
      store_tile<Rows>(x, call_.output, part);
    }
  }

  __device__ Coded load_coded(Way way, int source, std::uint32_t slot, std::uint32_t index) const {
    return Codec::load(call_, run_at(way, group_.rank, source, slot) + index * kTileBytes);
  }

  /// The first rank but this one, and the one after `source`.
  __device__ int first_source() const {
    return group_.rank == 0 ? 1 : 0;
  }
  __device__ int source_after(int source) const {
    return source + 1 == group_.rank ? source + 2 : source + 1;
  }

  /// The sum or average over ranks, in their order, of what they have sent of a tile and this rank
  /// has: `sum`. `next` is what the first one has sent; each is loaded while the one before it is
  /// decoded.
  __device__ void add_others(float (&sum)[kPerLane], const Tile& part, std::uint32_t slot,
                             std::uint32_t index, Coded next) const {
    float own[kPerLane];
    const bool is_later = group_.rank > 1;  // of the first two, either may be first
    if (is_later) {
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) {
        own[i] = sum[i];
        sum[i] = -0.0f;  // which leaves whatever is added as it is
      }
    }
    for (int source = first_source(); source < group_.size; source = source_after(source)) {
      const Coded coded = next;
      if (!Codec::is_valid(coded)) refuse_payload(group_, source);
      const int following = source_after(source);
      if (following < group_.size) next = load_coded(Way::ToOwner, following, slot, index);
      Codec::template decode<true>(coded, sum);
      if (is_later && source + 1 == group_.rank) {
#pragma unroll
        for (int i = 0; i < kPerLane; ++i) sum[i] = __fadd_rn(sum[i], own[i]);
      }
    }
    if (call_.divisor != 1.0f) {
      assign(sum, divide_all(elements(sum), call_.divisor));
    } else if (call_.factor != 1.0f) {
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) sum[i] = __fmul_rn(sum[i], call_.factor);
    }
    if (part.count < kTile) clear_beyond<Rows>(sum, part);
  }

  /// Finds out which flags this lane looks after: those of one way and peer, if there are any.
  __device__ void find_flags() {
    const int peer = lane_id() % kMaxPeers;
    if (lane_id() >= 2 * kMaxPeers || peer >= group_.size || peer == group_.rank) return;
    const Way way = lane_id() < kMaxPeers ? Way::ToOwner : Way::ToAll;
    const auto flag = [&](int owner, int source) {
      return reinterpret_cast<std::uint32_t*>(group_.arena[owner] + group_.flags_of(warp_) +
                                              group_.queue(way, owner, source) * sizeof(Flag));
    };
    const auto runs = [&](int owner) {
      return count_runs((call_.shares[owner].tiles + call_.run - 1) / call_.run);
    };
    const bool to_owner = way == Way::ToOwner;
    arriving_flag_ = flag(group_.rank, peer);
    leaving_flag_ = flag(peer, group_.rank);
    arriving_ = runs(to_owner ? group_.rank : peer);
    leaving_ = runs(to_owner ? peer : group_.rank);
    lag_ = to_owner ? 0 : 1;
  }

  /// Waits for what is used in a turn: run `turn` - 1 of the own share from everybody, and sums of
  /// run `turn` - 2 of all shares. False after a failure.
  __device__ bool await(std::uint32_t turn) const {
    const std::uint32_t run = turn - 1 - lag_;  // not below arriving_ if there is none
    bool good = true;
    if (run < arriving_) {
      const std::uint32_t wanted = base_ + run + 1;
      good = has_reached(load_acquire(arriving_flag_), wanted) ||
             wait_long(group_, lane_id() % kMaxPeers, arriving_flag_, wanted);
    }
    const bool all_good = __all_sync(kAllLanes, good);
    __syncwarp();  // what the lanes above have acquired is visible to all
    return all_good;
  }

  /// Tells all peers what this warp has put into their queues in a turn: run `turn`, and sums of
  /// run `turn` - 1.
  __device__ void signal(std::uint32_t turn) const {
    __syncwarp();
    const std::uint32_t run = turn - lag_;
    if (run < leaving_) store_release(leaving_flag_, base_ + run + 1);
  }

  /// Decodes a run of the others' shares, of which `next` is the first tile; each tile is loaded
  /// while the one before it is decoded.
  __device__ void gather(std::uint32_t run, std::uint32_t slot, Coded next) const {
    for (int distance = 1; distance < group_.size; ++distance) {
      const int owner = after(distance);
      for (std::uint32_t index = 0; index < call_.run; ++index) {
        const Tile part = tile(owner, run, index);
        const Coded coded = next;
        if (index + 1 < call_.run) {
          next = load_coded(Way::ToAll, owner, slot, index + 1);
        } else if (distance + 1 < group_.size) {
          next = load_coded(Way::ToAll, after(distance + 1), slot, 0);
        }
        if (part.count == 0) continue;
        if (!Codec::is_valid(coded)) refuse_payload(group_, owner);
        float x[kPerLane];
        Codec::template decode<false>(coded, x);
        Codec::keep_poison(coded, x);
        store_tile<Rows>(x, call_.output, part);
      }
    }
  }

  const TileGroup& group_;
  const TileCall& call_;
  Staged* staged_;  // two of them
  Step next_;
  unsigned buffer_ = 0;  // of the two: the one that was fetched into last
  std::uint64_t once_;
  std::uint32_t warp_, warps_;
  std::uint64_t runs_at_;  // in every arena
  std::uint32_t base_ = 0;
  // The flags of this lane: runs that come and go in this operation, and turns between a run and
  // what they tell of it.
  std::uint32_t* arriving_flag_ = nullptr;
  std::uint32_t* leaving_flag_ = nullptr;
  std::uint32_t arriving_ = 0, leaving_ = 0, lag_ = 0;
};

template <class Codec>
inline constexpr unsigned kStagedBytes = kTileWarps * 2 *
                                         sizeof(typename TileWorker<Codec>::Staged);

template <class Codec>
__global__ void __launch_bounds__(kTileThreads, Codec::kBlocks)
    all_reduce_tiles(const __grid_constant__ TileGroup group,
                     const __grid_constant__ TileCall call) {
  using Worker = TileWorker<Codec>;
  extern __shared__ std::byte staged[];
  begin_after_previous();
  if (load_relaxed(&group.progress->failed) != 0) return;
  Worker(group, call, reinterpret_cast<typename Worker::Staged*>(staged) + threadIdx.x / 32 * 2)
      .run();
}

inline bool has_feedback(const TileCall& call) {
  return call.sender.residual_next != nullptr || call.reducer.residual_next != nullptr;
}

template <class Codec>
void launch_tiles(const TileGroup& group, const TileCall& call, StreamView stream) {
  const auto most = static_cast<std::uint32_t>(group.most_blocks(Codec::kBlocks));
  launch(all_reduce_tiles<Codec>, std::min(call.runs, most), kTileThreads, kStagedBytes<Codec>,
         group.early, stream, group, call);
}

template <class Codec>
void load_tile_kernel() {
  load_kernel(all_reduce_tiles<Codec>, kStagedBytes<Codec>);
}

}  // namespace tersum::gpu
