// The kernel of compressed all-reduces, for any codec of tiles.
//
// Each warp works on its own, together with the warps of the same number on the other ranks. In
// turn i it encodes run i (one or two tiles) of every rank's share straight into that rank's queue,
// takes run i - 1 of its own share out of the queues here, adds, encodes the sum into everybody's
// queue, and decodes run i - 2 of all shares into the output. So what it waits for was sent a turn
// ago, and the wire, both codecs and memory are busy at once with what different warps do.
//
// Three slots are enough, and nobody says when one is free: a rank that sends run i has finished
// run i - 3; so it had been given the sums of that run, for which their owner had taken out what
// was in the slot; and an owner stores sums of run i only when that rank has sent run i.
//
// What a rank has for itself goes through its own queues: it loses what the others' values lose,
// and the code is small. Straight-line code of many kilobytes would be fetched slower than it runs.
#pragma once

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

/// One warp's way through an operation.
template <class Codec>
class TileWorker {
 public:
  using Coded = typename Codec::Coded;
  using Context = typename Codec::Context;
  using Rows = typename Codec::Rows;

  /// `staged` is shared memory of this warp.
  __device__ TileWorker(const TileGroup& group, const TileCall& call, StagedTile (&staged)[2])
      : group_(group),
        call_(call),
        staged_(staged),
        warp_(threadIdx.x / 32 * gridDim.x + blockIdx.x),  // few tiles go to many multiprocessors
        warps_(gridDim.x * kTileWarps),
        flags_at_(group.flags_of(warp_)),
        runs_at_(group.runs_of(warp_)) {}

  __device__ void run() {
    turns_ = warp_ < call_.runs ? (call_.runs - warp_ - 1) / warps_ + 1 : 0;
    if (turns_ == 0) return;
    base_ = group_.tiles->finished[warp_];
    const Context context(call_);
    std::uint32_t slot = base_ % kRunSlots;  // of the run that is sent
    fetch(1, 0, 0);
    for (std::uint32_t turn = 0; turn < turns_ + 2; ++turn) {
      const std::uint32_t next = slot + 1 < kRunSlots ? slot + 1 : 0;
      const std::uint32_t last = slot > 0 ? slot - 1 : kRunSlots - 1;
      if (!send_and_reduce(turn, slot, last, context)) return;
      signal(turn);
      if (turn >= 2) gather(turn - 2, next);  // the one before the last
      slot = next;
    }
    if (lane_id() == 0) group_.tiles->finished[warp_] = base_ + turns_;
    context.finish(call_, min(warps_, call_.runs));
  }

 private:
  __device__ Tile tile(int owner, std::uint32_t turn, std::uint32_t index) const {
    return tile_of(call_, owner, (turn * warps_ + warp_) * call_.run + index);
  }
  __device__ bool has_run(int owner, std::uint32_t turn) const {
    return (turn * warps_ + warp_) * call_.run < call_.shares[owner].tiles;
  }
  __device__ int after(int distance) const {
    const int rank = group_.rank + distance;
    return rank < group_.size ? rank : rank - group_.size;
  }

  /// In `owner`'s memory: the queue of a way from `source`, and its flag.
  __device__ std::byte* tile_at(Way way, int owner, int source, std::uint32_t slot,
                                std::uint32_t index) const {
    const std::uint32_t run = group_.queue(way, source) * kRunSlots + slot;
    return group_.arena[owner] + runs_at_ + (run * kRunBytes + index * kTileBytes);
  }
  __device__ std::uint32_t* flag(Way way, int owner, int source) const {
    return reinterpret_cast<std::uint32_t*>(group_.arena[owner] + flags_at_ +
                                            group_.queue(way, source) *
                                                static_cast<std::uint32_t>(sizeof(Flag)));
  }

  /// Begins to fetch the input of a tile, if it is a whole one.
  __device__ void fetch(int distance, std::uint32_t turn, std::uint32_t index) {
    fetched_ ^= 1;
    if (turn < turns_) {
      const Tile part = tile(after(distance), turn, index);
      if (part.whole) staged_[fetched_].fetch(call_.input, part);
    }
    StagedTile::end_group();
  }

  /// The input of a tile, which was fetched, and the fetch of the one after it.
  __device__ void load(float (&x)[kPerLane], const Tile& part, int distance, std::uint32_t turn,
                       std::uint32_t index) {
    const StagedTile& arriving = staged_[fetched_];
    if (index + 1 < call_.run) {
      fetch(distance, turn, index + 1);
    } else if (distance < group_.size) {
      fetch(distance + 1, turn, 0);
    } else {
      fetch(1, turn + 1, 0);
    }
    StagedTile::await_all_but_last();
    if (part.whole) {
      Rows::load(x, arriving);
    } else if (part.count > 0) {
      Rows::load(x, call_.input, part);
    }
    __syncwarp();  // all have read before it is fetched into again
  }

  /// Run `turn` of all shares, and the sums of run `turn` - 1 of the own one. False after a
  /// failure.
  __device__ bool send_and_reduce(std::uint32_t turn, std::uint32_t slot, std::uint32_t last_slot,
                                  const Context& context) {
    for (int distance = 1; distance <= group_.size + 1; ++distance) {
      const bool reduces = distance > group_.size;
      if (reduces && turn > 0 && !await(turn)) return false;
      if (reduces ? turn == 0 || turn > turns_ : turn >= turns_) continue;
      const int owner = reduces ? group_.rank : after(distance);
      Coded next;
      if (reduces) next = load_coded(Way::ToOwner, 0, last_slot, 0);
      for (std::uint32_t index = 0; index < call_.run; ++index) {
        const Tile part = tile(owner, reduces ? turn - 1 : turn, index);
        float x[kPerLane];
        if (reduces) {
          add_up(x, part, last_slot, index, next);
        } else {
          load(x, part, distance, turn, index);
        }
        if (part.count == 0) continue;
        const TileMemory& memory = reduces ? call_.reducer : call_.sender;
        const Coded coded =
            encode(x, part, memory, reduces ? kReducerRank : call_.world_rank, context);
        if (reduces) {
          hand_out(coded, last_slot, index);
        } else {
          Codec::store(coded, call_, tile_at(Way::ToOwner, owner, group_.rank, slot, index));
        }
      }
      if (!reduces) prefetch(owner, turn + 1);
    }
    return true;
  }

  __device__ Coded encode(float (&x)[kPerLane], const Tile& part, const TileMemory& memory,
                          std::uint32_t encoder, const Context& context) const {
    const bool feedback = Codec::kFeedback && memory.residual_next != nullptr;
    if (feedback) add_residual<Rows, Codec::kNan>(x, memory.residual, part);
    const Coded coded = Codec::encode(x, part, call_, context, encoder, feedback);
    if (feedback) Rows::store(x, memory.residual_next, part);
    return coded;
  }

  /// An encoded sum to everybody.
  __device__ void hand_out(const Coded& coded, std::uint32_t slot, std::uint32_t index) const {
    for (int distance = 1; distance <= group_.size; ++distance) {
      Codec::store(coded, call_, tile_at(Way::ToAll, after(distance), group_.rank, slot, index));
    }
  }

  __device__ Coded load_coded(Way way, int source, std::uint32_t slot, std::uint32_t index) const {
    return Codec::load(call_, tile_at(way, group_.rank, source, slot, index));
  }

  /// The sum or average of what all ranks have sent of a tile. `next` is what the first has sent,
  /// then that of the tile after it: each is loaded while the one before it is decoded.
  __device__ void add_up(float (&sum)[kPerLane], const Tile& part, std::uint32_t slot,
                         std::uint32_t index, Coded& next) const {
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) sum[i] = -0.0f;  // which leaves whatever is added as it is
    for (int source = 0; source < group_.size; ++source) {
      const Coded coded = next;
      if (source + 1 < group_.size) {
        next = load_coded(Way::ToOwner, source + 1, slot, index);
      } else if (index + 1 < call_.run) {
        next = load_coded(Way::ToOwner, 0, slot, index + 1);
      }
      Codec::template decode<true>(coded, sum);
    }
    if (call_.divisor != 1.0f) {
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) sum[i] = __fdiv_rn(sum[i], call_.divisor);
    } else if (call_.factor != 1.0f) {
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) sum[i] = __fmul_rn(sum[i], call_.factor);
    }
    if (part.count < kTile) Rows::clear_beyond(sum, part);
  }

  /// Brings the input of a run nearer.
  __device__ void prefetch(int owner, std::uint32_t turn) const {
    if (turn >= turns_) return;
    const Tile part = tile(owner, turn, lane_id() * 32 / kTile);
    if (lane_id() * 32 >= kTile * call_.run || part.count < kTile) return;
    const std::uint64_t i = part.first + lane_id() * 32 % kTile;
    asm volatile("prefetch.global.L2 [%0];" ::"l"(call_.input + i));
    if (Codec::kFeedback && call_.sender.residual != nullptr) {
      asm volatile("prefetch.global.L2 [%0];" ::"l"(call_.sender.residual + i));
    }
  }

  /// Lanes that look after flags: one for each way and peer.
  __device__ Way way_of_lane() const {
    return lane_id() < kMaxPeers ? Way::ToOwner : Way::ToAll;
  }
  __device__ int peer_of_lane() const {
    return lane_id() < kMaxPeers ? lane_id() : lane_id() - kMaxPeers;
  }

  /// Waits for what is used in a turn: run `turn` - 1 of the own share from everybody, and sums of
  /// run `turn` - 2 of all shares. False after a failure.
  __device__ bool await(std::uint32_t turn) const {
    const Way way = way_of_lane();
    const int peer = peer_of_lane();
    bool needed = peer < group_.size && peer != group_.rank;
    if (needed) {
      needed = way == Way::ToOwner ? turn <= turns_ && has_run(group_.rank, turn - 1)
                                   : turn >= 2 && has_run(peer, turn - 2);
    }
    bool good = true;
    if (needed) {
      const std::uint32_t* arrived = flag(way, group_.rank, peer);
      const std::uint32_t wanted = base_ + turn - (way == Way::ToOwner ? 0 : 1);
      good = has_reached(load_relaxed(arrived), wanted) || wait_long(group_, peer, arrived, wanted);
      load_acquire(arrived);
    }
    const bool all_good = __all_sync(kAllLanes, good);
    __syncwarp();  // what the lanes above have acquired is visible to all
    return all_good;
  }

  /// Tells all peers what this warp has put into their queues in a turn.
  __device__ void signal(std::uint32_t turn) const {
    __syncwarp();
    const Way way = way_of_lane();
    const int peer = peer_of_lane();
    if (peer >= group_.size || peer == group_.rank) return;
    const bool sent = way == Way::ToOwner
                          ? turn < turns_ && has_run(peer, turn)
                          : turn >= 1 && turn <= turns_ && has_run(group_.rank, turn - 1);
    if (sent) {
      store_release(flag(way, peer, group_.rank), base_ + turn + (way == Way::ToOwner ? 1 : 0));
    }
  }

  /// Decodes a run of all shares; each tile is loaded while the one before it is decoded.
  __device__ void gather(std::uint32_t turn, std::uint32_t slot) const {
    Coded next = load_coded(Way::ToAll, after(1), slot, 0);
    for (int distance = 1; distance <= group_.size; ++distance) {
      const int owner = after(distance);
      for (std::uint32_t index = 0; index < call_.run; ++index) {
        const Tile part = tile(owner, turn, index);
        const Coded coded = next;
        if (index + 1 < call_.run) {
          next = load_coded(Way::ToAll, owner, slot, index + 1);
        } else if (distance < group_.size) {
          next = load_coded(Way::ToAll, after(distance + 1), slot, 0);
        }
        if (part.count == 0) continue;
        float x[kPerLane];
        Codec::template decode<false>(coded, x);
        Codec::keep_poison(coded, x);
        Rows::store(x, call_.output, part);
      }
    }
  }

  const TileGroup& group_;
  const TileCall& call_;
  StagedTile (&staged_)[2];
  unsigned fetched_ = 0;  // of them: the one that was fetched into last
  std::uint32_t warp_, warps_;
  std::uint64_t flags_at_, runs_at_;  // in every arena
  std::uint32_t base_ = 0, turns_ = 0;
};

template <class Codec>
__global__ void __launch_bounds__(kTileThreads, Codec::kBlocks)
    all_reduce_tiles(const __grid_constant__ TileGroup group,
                     const __grid_constant__ TileCall call) {
  begin_after_previous();
  if (load_relaxed(&group.progress->failed) != 0) return;
  __shared__ StagedTile staged[kTileWarps][2];
  TileWorker<Codec>(group, call, staged[threadIdx.x / 32]).run();
}

inline bool has_feedback(const TileCall& call) {
  return call.sender.residual_next != nullptr || call.reducer.residual_next != nullptr;
}

template <class Codec>
void launch_tiles(const TileGroup& group, const TileCall& call, int blocks, StreamView stream) {
  launch(all_reduce_tiles<Codec>, static_cast<unsigned>(blocks), kTileThreads, group.early, stream,
         group, call);
}

}  // namespace tersum::gpu
