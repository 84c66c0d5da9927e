// The kernel of compressed all-reduces, for any codec of tiles.
//
// Each warp works on its own, together with the warps of the same number on the other ranks. In
// turn i it encodes tile i of every rank's share straight into that rank's queue, takes tile i - 1
// of its own share out of the queues here, adds, encodes the sum into everybody's queue and its
// output, and decodes tile i - 2 of the other shares. So what it waits for was sent a turn ago, and
// the wire, both codecs and memory are busy at once with what different warps do.
//
// Three slots are enough, and nobody says when one is free: a rank that has sent tile i has
// finished tile i - 3; so it has been given the sums of that tile, for which its owner had to take
// out what was in the slot; and the owner stores sums of tile i only when that rank has sent tile
// i.
//
// The own part goes through a queue, too, so that it loses what the others' parts lose.
#pragma once

#include "cuda/collective_launch.cuh"
#include "cuda/compressed_kernels.hpp"
#include "cuda/compressed_tile.cuh"
#include "cuda/signal.cuh"

namespace tersum::gpu {

/// One warp's way through an operation.
template <class Codec>
class TileWorker {
 public:
  using Coded = typename Codec::Coded;
  using Rows = typename Codec::Rows;

  __device__ TileWorker(const TileGroup& group, const TileCall& call)
      : group_(group),
        call_(call),
        warp_(threadIdx.x / 32 * gridDim.x + blockIdx.x),  // few tiles go to many multiprocessors
        warps_(gridDim.x * kTileWarps) {}

  __device__ void run() {
    const std::uint32_t turns = warp_ < call_.tiles ? (call_.tiles - warp_ - 1) / warps_ + 1 : 0;
    if (turns == 0) return;
    base_ = group_.tiles->finished[warp_];
    typename Codec::Context context(call_);
    for (std::uint32_t turn = 0; turn < turns + 2; ++turn) {
      if (turn < turns) send(turn, context);
      if (turn >= 1 && turn <= turns && !reduce(turn - 1, context)) return;
      signal(turn, turns);
      if (turn >= 2 && !gather(turn - 2)) return;
    }
    if (lane_id() == 0) group_.tiles->finished[warp_] = base_ + turns;
    context.finish(call_, min(warps_, call_.tiles));
  }

 private:
  __device__ Tile tile(int owner, std::uint32_t turn) const {
    return tile_of(call_, owner, warp_ + turn * warps_);
  }

  /// In `owner`'s memory, the queue from `source`.
  __device__ std::byte* slot(Way way, int owner, int source, std::uint32_t turn) const {
    return group_.arena[owner] + group_.slot_at(way, warp_, source, base_ + turn);
  }

  __device__ std::uint32_t* flag(Way way, int owner, int source) const {
    return reinterpret_cast<std::uint32_t*>(group_.arena[owner] +
                                            group_.flag_at(way, warp_, source));
  }

  /// Encodes x with what `memory` has, and keeps there what is lost.
  __device__ Coded encode(float (&x)[kPerLane], const TileMemory& memory, const Tile& part,
                          const typename Codec::Context& context, std::uint32_t encoder) const {
    const bool feedback = memory.residual_next != nullptr;
    if (feedback) add_residual<Rows, Codec::kNan>(x, memory.residual, part);
    const Coded coded = Codec::encode(x, part, call_, context, encoder, feedback);
    if (feedback) Rows::store(x, memory.residual_next, part);
    return coded;
  }

  __device__ void send(std::uint32_t turn, const typename Codec::Context& context) const {
    for (int distance = 1; distance <= group_.size; ++distance) {
      int owner = group_.rank + distance;
      if (owner >= group_.size) owner -= group_.size;
      const Tile part = tile(owner, turn);
      if (part.count == 0) continue;
      float x[kPerLane];
      Rows::load(x, call_.input, part);
      const Coded coded = encode(x, call_.sender, part, context, call_.world_rank);
      Codec::store(coded, call_, slot(Way::ToOwner, owner, group_.rank, turn));
    }
  }

  /// Waits for tile number `turn` of every peer (whose share has one). False after a failure.
  __device__ bool await(Way way, std::uint32_t turn) const {
    bool good = true;
    const int peer = lane_id();
    if (peer < group_.size && peer != group_.rank &&
        (way == Way::ToOwner || tile(peer, turn).count != 0)) {
      const std::uint32_t* arrived = flag(way, group_.rank, peer);
      const std::uint32_t wanted = base_ + turn + 1;
      Watch watch(group_.progress, group_.mailbox, group_.timeout_ns);
      good = watch.wait(peer, [&] { return has_reached(load_relaxed(arrived), wanted); });
      load_acquire(arrived);
    }
    return __all_sync(kAllLanes, good);
  }

  __device__ bool reduce(std::uint32_t turn, const typename Codec::Context& context) const {
    const Tile part = tile(group_.rank, turn);
    if (part.count == 0) return true;
    if (!await(Way::ToOwner, turn)) return false;
    float sum[kPerLane];
    for (int source = 0; source < group_.size; ++source) {
      const Coded coded = Codec::load(call_, slot(Way::ToOwner, group_.rank, source, turn));
      if (source == 0) {
        Codec::template decode<false>(coded, call_, sum);
      } else {
        Codec::template decode<true>(coded, call_, sum);
      }
    }
    if (call_.divisor != 1.0f) {
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) sum[i] = __fdiv_rn(sum[i], call_.divisor);
    } else {
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) sum[i] = __fmul_rn(sum[i], call_.factor);
    }
    const Coded coded = encode(sum, call_.reducer, part, context, kReducerRank);
    for (int distance = 1; distance < group_.size; ++distance) {
      int peer = group_.rank + distance;
      if (peer >= group_.size) peer -= group_.size;
      Codec::store(coded, call_, slot(Way::ToAll, peer, group_.rank, turn));
    }
    Codec::template decode<false>(coded, call_, sum);
    Codec::keep_poison(coded, sum);
    Rows::store(sum, call_.output, part);
    return true;
  }

  /// Tells all peers what this warp has put into their queues in a turn.
  __device__ void signal(std::uint32_t turn, std::uint32_t turns) const {
    __syncwarp();
    const int ways = lane_id() / group_.size;
    const int peer = lane_id() - ways * group_.size;
    if (ways > 1 || peer == group_.rank) return;
    const Way way = static_cast<Way>(ways);
    const bool sent = way == Way::ToOwner
                          ? turn < turns && tile(peer, turn).count != 0
                          : turn >= 1 && turn <= turns && tile(group_.rank, turn - 1).count != 0;
    if (sent) {
      store_release(flag(way, peer, group_.rank), base_ + turn + (way == Way::ToOwner ? 1 : 0));
    }
  }

  __device__ bool gather(std::uint32_t turn) const {
    if (!await(Way::ToAll, turn)) return false;
    for (int distance = 1; distance < group_.size; ++distance) {
      int owner = group_.rank + distance;
      if (owner >= group_.size) owner -= group_.size;
      const Tile part = tile(owner, turn);
      if (part.count == 0) continue;
      float x[kPerLane];
      const Coded coded = Codec::load(call_, slot(Way::ToAll, group_.rank, owner, turn));
      Codec::template decode<false>(coded, call_, x);
      Codec::keep_poison(coded, x);
      Rows::store(x, call_.output, part);
    }
    return true;
  }

  const TileGroup& group_;
  const TileCall& call_;
  std::uint32_t warp_, warps_;
  std::uint32_t base_ = 0;
};

template <class Codec>
__global__ void __launch_bounds__(kTileThreads, Codec::kBlocks)
    all_reduce_tiles(const __grid_constant__ TileGroup group,
                     const __grid_constant__ TileCall call) {
  begin_after_previous();
  if (load_relaxed(&group.progress->failed) != 0) return;
  TileWorker<Codec>(group, call).run();
}

template <class Codec>
void launch_tiles(const TileGroup& group, const TileCall& call, int blocks, StreamView stream) {
  launch(all_reduce_tiles<Codec>, static_cast<unsigned>(blocks), kTileThreads, group.early, stream,
         group, call);
}

}  // namespace tersum::gpu
