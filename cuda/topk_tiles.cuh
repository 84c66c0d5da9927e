// Tiles of a bitmap of candidates, as topk's kernels take them: one block per tile at a time, four
// words per thread.
#pragma once

#include <cstdint>

#include "cuda/block_scan.cuh"
#include "cuda/topk_twin.hpp"

namespace tersum::gpu {

inline constexpr int kTileThreads = kSelectTile / 128;

/// A thread's 128 elements of a tile, the first in the lowest bit of the first word.
struct TileWords {
  std::uint32_t word[4];

  __device__ std::uint32_t ones() const {
    return __popc(word[0]) + __popc(word[1]) + __popc(word[2]) + __popc(word[3]);
  }
  /// Calls act(index inside the tile, part, bit) for each bit of word[part] that is set, in order.
  template <class Act>
  __device__ void for_each(const Act& act) const {
#pragma unroll
    for (std::uint32_t part = 0; part < 4; ++part) {
      for (std::uint32_t rest = word[part]; rest != 0; rest &= rest - 1) {
        act(threadIdx.x * 128 + part * 32 + __ffs(rest) - 1, part, rest & -rest);
      }
    }
  }
};

__device__ inline uint4* tile_words(std::uint32_t* bitmap, std::uint32_t tile) {
  return reinterpret_cast<uint4*>(bitmap) + tile * kTileThreads + threadIdx.x;
}

__device__ inline TileWords load_tile(std::uint32_t* bitmap, std::uint32_t tile) {
  const uint4 words = *tile_words(bitmap, tile);
  return {{words.x, words.y, words.z, words.w}};
}

__device__ inline void store_tile(std::uint32_t* bitmap, std::uint32_t tile,
                                  const TileWords& words) {
  *tile_words(bitmap, tile) =
      make_uint4(words.word[0], words.word[1], words.word[2], words.word[3]);
}

/// Where a tile's candidates begin in the list; for the tile behind the last one, where it ends.
__device__ inline std::uint32_t list_position(const SelectMemory& memory, std::uint32_t tile) {
  const SelectControl* control = memory.control;
  if (tile >= memory.tiles) return control->candidates;
  if (control->knowledge == Knowledge::Guessed) return memory.guessed[tile];
  if (control->knowledge != Knowledge::Exact) return memory.tile_above[tile];
  return memory.tile_above[tile] + min(memory.tile_equal[tile], control->left);
}

}  // namespace tersum::gpu
