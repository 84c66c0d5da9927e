// What the host and the kernels of compressed all-reduces agree on: where things are.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/collective_layout.hpp"

namespace tersum::gpu {

/// Elements that one warp encodes, adds or decodes at once; every fused block divides it.
inline constexpr std::uint32_t kTile = 512;
/// Bytes of an encoded tile, at most: its codes, then its scales.
inline constexpr std::uint32_t kTileBytes = 1024;
/// Most tiles that a warp sends before it says so.
inline constexpr std::uint32_t kMaxRun = 2;
/// Runs of encoded tiles that a queue holds. A warp is at most two runs ahead of the one that it
/// finishes, so that three are enough without a word from the reader: see compressed_kernel.cuh.
inline constexpr std::uint32_t kRunSlots = 3;
inline constexpr int kTileThreads = 256;
inline constexpr int kTileWarps = kTileThreads / 32;
/// Most blocks of one kernel.
inline constexpr int kMaxTileBlocks = 528;

/// The two ways of an encoded tile: to the owner who adds, and back to everybody.
enum class Way : int { ToOwner = 0, ToAll = 1 };

/// Counters of one rank, in its own device memory: runs that each warp has finished in all
/// operations so far (modulo 2^32).
struct TileProgress {
  std::uint32_t finished[kMaxTileBlocks * kTileWarps];
};

/// A group of peers, as the kernels of compressed all-reduces see it. Passed by value.
struct TileGroup {
  int rank;
  int size;
  std::byte* arena[kMaxPeers];  ///< of each rank: flags, then queues
  std::uint32_t warps;          ///< that the arena has queues for
  std::uint64_t queue_offset;   ///< in the arena: [way][warp][source][slot] runs
  TileProgress* tiles;
  Progress* progress;
  Mailbox* mailbox;
  std::uint64_t timeout_ns;
  bool early;

  /// In the arena: runs that `source` has put into its queue there.
  constexpr std::uint64_t flag_at(Way way, std::uint32_t warp, int source) const {
    return index_of(way, warp, source) * sizeof(Flag);
  }
  /// In the arena: run number `turn` of that queue.
  constexpr std::uint64_t slot_at(Way way, std::uint32_t warp, int source,
                                  std::uint32_t turn) const {
    return queue_offset + (index_of(way, warp, source) * kRunSlots + turn % kRunSlots) *
                              (std::uint64_t{kMaxRun} * kTileBytes);
  }
  constexpr std::uint64_t index_of(Way way, std::uint32_t warp, int source) const {
    const std::uint64_t first = static_cast<std::uint64_t>(way) * warps + warp;
    return first * static_cast<unsigned>(size) + static_cast<unsigned>(source);
  }
};

/// What error feedback remembers of the elements of one call; null where there is none. The next
/// values may take the place of the present ones.
struct TileMemory {
  const float* residual;
  float* residual_next;
};

/// Where random draws come from.
struct TileDraws {
  std::uint64_t seed;
  std::uint64_t key;
  std::uint64_t step;           ///< if there is no counter
  std::uint64_t* step_counter;  ///< on the device, or null
  std::uint32_t* finished;      ///< the operation counts the step on if this is not null: warps
                                ///< that have ended, zero between operations
  std::uint64_t offset;         ///< of element 0 inside its gradient
};

/// One all-reduce. Passed by value.
struct TileCall {
  const float* input;
  float* output;
  std::uint64_t begin[kMaxPeers + 1];  ///< share r is the elements from begin[r] to begin[r + 1]
  TileMemory sender;
  TileMemory reducer;
  bool aligned;         ///< all arrays are at multiples of 16 bytes
  std::uint32_t runs;   ///< of the largest share
  std::uint32_t run;    ///< tiles in each, 1 to kMaxRun
  std::uint32_t block;  ///< elements that share a scale; divides kTile
  int block_shift;      ///< log2 of it
  float factor;         ///< of sums: 1, or 1 / ranks where that is exact
  float divisor;        ///< of sums, after the factor
  std::uint32_t world_rank;
  TileDraws draws;
};

}  // namespace tersum::gpu
