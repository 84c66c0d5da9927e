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
inline constexpr std::uint32_t kRunBytes = kMaxRun * kTileBytes;
/// Runs of encoded tiles that a queue holds. A warp is at most two runs ahead of the one that it
/// finishes, so that three are enough without a word from the reader: see compressed_kernel.cuh.
inline constexpr std::uint32_t kRunSlots = 3;
inline constexpr int kTileThreads = 256;
inline constexpr int kTileWarps = kTileThreads / 32;
/// Most blocks of one kernel.
inline constexpr int kMaxTileBlocks = 528;
/// Most of them that a kernel has on a multiprocessor at once.
inline constexpr int kMaxResidentBlocks = 4;

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
  std::byte* arena[kMaxPeers];  ///< of each rank: flags [warp][way][source], then queues
  std::uint64_t queue_offset;   ///< in the arena: [warp][way][source][slot] runs
  int multiprocessors;          ///< of the smallest GPU
  int blocks;                   ///< most of a kernel; 0: as many as leave others some room
  TileProgress* tiles;
  Progress* progress;
  Mailbox* mailbox;
  std::uint64_t timeout_ns;
  bool early;

  /// Blocks of a kernel of which so many are on a multiprocessor at once: as many as find room, or
  /// an eighth less, so that another group's kernels never wait for all of these to end.
  constexpr int most_blocks(int resident) const {
    const int room = multiprocessors * resident;
    if (blocks == 0) return room - (room + 7) / 8;
    return blocks < room ? blocks : room;
  }

  /// Sources of a queue: the other ranks.
  constexpr int sources() const { return size > 1 ? size - 1 : 1; }
  /// Queues of one warp, and where they begin in an arena.
  constexpr std::uint32_t queues() const { return 2 * static_cast<std::uint32_t>(sources()); }
  constexpr std::uint64_t flags_of(std::uint32_t warp) const {
    return std::uint64_t{warp} * (queues() * static_cast<std::uint32_t>(sizeof(Flag)));
  }
  constexpr std::uint64_t runs_of(std::uint32_t warp) const {
    return queue_offset + std::uint64_t{warp} * (queues() * kRunSlots * kRunBytes);
  }
  /// Among the queues of a warp in `owner`'s arena: the one of a way from another rank, `source`.
  constexpr std::uint32_t queue(Way way, int owner, int source) const {
    const int place = source > owner ? source - 1 : source;
    return static_cast<std::uint32_t>(static_cast<int>(way) * sources() + place);
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

/// The elements that one rank adds up.
struct TileShare {
  std::uint64_t begin;  ///< first element
  std::uint32_t tiles;  ///< all of them
  std::uint32_t whole;  ///< those with kTile elements
  std::uint32_t rest;   ///< elements of the other one, if there is one
};

/// One all-reduce. Passed by value.
struct TileCall {
  const float* input;
  float* output;
  TileShare shares[kMaxPeers];
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
