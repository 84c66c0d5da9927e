#include "cuda/compressed.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <string>
#include <utility>

#include "compressors/wire_ids.hpp"
#include "cuda/compressed_composed.hpp"
#include "cuda/compressed_kernels.hpp"
#include "cuda/compressed_plan.hpp"
#include "cuda/error.hpp"
#include "cuda/twin_methods.hpp"

namespace tersum::gpu {
namespace {

/// All but geometry and memory.
TileGroup make_group(const Group& peers, const CompressedSettings& settings) {
  if (settings.blocks < 0 || settings.blocks > kMaxTileBlocks) {
    throw Error(Code::InvalidArgument, "blocks must be 0 to " + std::to_string(kMaxTileBlocks));
  }
  TileGroup group{};
  group.rank = peers.rank;
  group.size = peers.size;
  group.progress = peers.progress;
  group.mailbox = peers.mailbox;
  group.timeout_ns = peers.timeout_ns;
  group.early = peers.early;
  group.blocks = settings.blocks;
  return group;
}

/// Of the smallest GPU of all ranks, and no more than kernels can use.
int count_multiprocessors(const AllGatherBlobs& all_gather) {
  int count = 0;
  check(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, current_device()),
        "cudaDeviceGetAttribute");
  int least = kMaxTileBlocks / kMaxResidentBlocks;
  for (const auto& blob : all_gather(std::as_bytes(std::span(&count, 1)))) {
    std::memcpy(&count, blob.data(), sizeof(count));
    least = std::min(least, count);
  }
  return least;
}

/// Fills in `group`'s geometry and returns the bytes of an arena. Collective.
std::size_t lay_out(TileGroup& group, const AllGatherBlobs& all_gather) {
  group.multiprocessors = count_multiprocessors(all_gather);
  const auto warps = static_cast<std::uint32_t>(group.most_blocks(kMaxResidentBlocks) * kTileWarps);
  group.queue_offset = (group.flags_of(warps) + kRunBytes - 1) / kRunBytes * kRunBytes;
  return group.runs_of(warps);
}

}  // namespace

StepCounter::StepCounter(StreamView stream) : memory_(2 * sizeof(std::uint64_t)) {
  check(cudaMemsetAsync(memory_.data(), 0, memory_.bytes(), stream.get()), "cudaMemsetAsync");
}

void StepCounter::set(std::uint64_t step, StreamView stream) const {
  check(cudaMemcpyAsync(memory_.data(), &step, sizeof(step), cudaMemcpyHostToDevice, stream.get()),
        "cudaMemcpyAsync");
}

std::uint64_t StepCounter::get(StreamView stream) const {
  std::uint64_t step = 0;
  check(cudaMemcpyAsync(&step, memory_.data(), sizeof(step), cudaMemcpyDeviceToHost, stream.get()),
        "cudaMemcpyAsync");
  stream.synchronize();
  return step;
}

struct CompressedCommunicator::State {
  PeerCommunicator& peers;
  TileGroup group;  // before the arena, which fills in its geometry
  PeerMap map;
  DeviceBuffer arena;
  DeviceBuffer tiles;

  State(PeerCommunicator& communicator, AllGatherBlobs all_gather,
        const CompressedSettings& settings)
      : peers(communicator),
        group(make_group(peers.group(), settings)),
        map(peers.rank(), peers.size(), all_gather),
        arena(lay_out(group, all_gather)),
        tiles(sizeof(TileProgress)) {
    load_tile_kernels_qint_nearest();
    load_tile_kernels_qint_stochastic();
    load_tile_kernels_sign();
    load_tile_kernels_cast();
    clear();
    const PeerBuffers arenas = map.map(arena);
    if (!map.agree(arenas.complete())) {
      throw Error(Code::Unsupported, "a peer's communication memory cannot be mapped");
    }
    std::copy(arenas.data.begin(), arenas.data.end(), group.arena);
    group.tiles = tiles.as<TileProgress>();
  }

  /// Blocks until it is done.
  void clear() const {
    check(cudaMemset(arena.data(), 0, arena.bytes()), "cudaMemset");
    check(cudaMemset(tiles.data(), 0, tiles.bytes()), "cudaMemset");
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }

  void run_fused(const CompressedMethod& method, const CompressedSlice& slice, ReduceOp op,
                 StreamView stream) const {
    const TileCall call = plan_tiles(method, slice, op, group.size);
    const TwinParameters& parameters = method.parameters();
    switch (parameters.wire_id) {
      case compressors::wire_id::kFloat16:
        return launch_tiles_cast(group, call, DType::Float16, stream);
      case compressors::wire_id::kBFloat16:
        return launch_tiles_cast(group, call, DType::BFloat16, stream);
      case compressors::wire_id::kSign:
        return launch_tiles_sign(group, call, stream);
      default:
        return parameters.stochastic
                   ? launch_tiles_qint_stochastic(group, call, parameters.bits, stream)
                   : launch_tiles_qint_nearest(group, call, parameters.bits, stream);
    }
  }
};

CompressedCommunicator::CompressedCommunicator(PeerCommunicator& peers, AllGatherBlobs all_gather,
                                               CompressedSettings settings) {
  const DeviceGuard guard(peers.device());
  state_ = std::make_unique<State>(peers, std::move(all_gather), settings);
}

CompressedCommunicator::~CompressedCommunicator() = default;

void CompressedCommunicator::all_reduce(const CompressedMethod& method,
                                        const CompressedSlice& slice, ReduceOp op,
                                        StreamView stream) {
  check_slice(method, slice, op, state_->group.size);
  if (slice.count == 0) return;
  const DeviceGuard guard(state_->peers.device());
  if (method.form() != CompressedMethod::Form::Fused) {
    return run_composed(state_->peers, method, slice, op, stream);
  }
  state_->run_fused(method, slice, op, stream);
  if (method.twin().state_arrays() > 0)
    slice.state->mark_written(slice.context.offset, slice.count);
  if (method.feeds_back_sums()) {
    std::uint64_t begin[kMaxPeers + 1];
    share_out(slice.count, share_unit(method), state_->group.size, begin);
    const auto rank = static_cast<std::size_t>(state_->group.rank);
    slice.reducer_state->mark_written(slice.context.offset + begin[rank],
                                      begin[rank + 1] - begin[rank]);
  }
}

void CompressedCommunicator::renew(AllGatherBlobs all_gather) {
  const DeviceGuard guard(state_->peers.device());
  state_->map.meet_by(std::move(all_gather));
  state_->clear();  // of the group before it nothing runs any more
  state_->map.agree(true);
}

void CompressedCommunicator::close() {
  const DeviceGuard guard(state_->peers.device());
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  state_->map.agree(true);
  state_->map.close();
}

PeerCommunicator& CompressedCommunicator::peers() const noexcept {
  return state_->peers;
}

std::size_t CompressedCommunicator::memory_bytes() const noexcept {
  return state_->arena.bytes() + state_->tiles.bytes();
}

}  // namespace tersum::gpu
