// Tiles: 512 elements in the registers of a warp, 16 per lane, and their way from and to memory.
#pragma once

#include "cuda/codec.cuh"
#include "cuda/compressed_layout.hpp"

namespace tersum::gpu {

inline constexpr int kTileRows = 4;  // of 128 elements, 4 consecutive ones per lane
inline constexpr int kPerLane = 16;  // elements of a tile

/// A run of at most kTile elements of a call.
struct Tile {
  std::uint64_t first;  // element of the call
  std::uint32_t count;  // 0: no such tile
  bool whole;           // all elements are there, and everything is aligned to 16 bytes
};

/// Tile `index` of a share.
__device__ inline Tile tile_of(const TileCall& call, int owner, std::uint32_t index) {
  const TileShare& share = call.shares[owner];
  const std::uint32_t count = index < share.whole ? kTile : index == share.whole ? share.rest : 0;
  return {share.begin + std::uint64_t{index} * kTile, count, call.aligned && index < share.whole};
}

__device__ inline int lane_id() {
  return static_cast<int>(threadIdx.x % 32);
}

/// A whole tile on its way from memory, element by element.
struct alignas(16) StagedTile {
  float elements[kTile];

  /// Begins to fetch it, with all lanes.
  __device__ void fetch(const float* from, const Tile& tile) {
    const float* source = from + tile.first + lane_id() * 4;
    const auto target =
        static_cast<std::uint32_t>(__cvta_generic_to_shared(elements + lane_id() * 4));
#pragma unroll
    for (int row = 0; row < kTileRows; ++row) {
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(target + row * 512),
                   "l"(source + row * 128)
                   : "memory");
    }
  }
  /// Ends a group of fetches, which may be empty.
  static __device__ void end_group() {
    asm volatile("cp.async.commit_group;" ::: "memory");
  }
  /// Returns when all groups but the last have arrived, for all lanes.
  static __device__ void await_all_but_last() {
    asm volatile("cp.async.wait_group 1;" ::: "memory");
    __syncwarp();
  }
};

/// Accesses to the end of a share, or unaligned ones: rare, and apart so that they cost the others
/// nothing.
static __device__ __noinline__ float4 load4_part(const float* from, std::size_t i,
                                                 std::size_t end) {
  return load4(from, i, end, false);
}
static __device__ __noinline__ void store4_part(float* to, std::size_t i, std::size_t end,
                                                float4 v) {
  store4(to, i, end, false, v);
}

/// Lane l has the elements 4 l to 4 l + 3 of each row of 128.
struct RowsOfFour {
  static __device__ void load(float (&x)[kPerLane], const float* from, const Tile& tile) {
    const std::size_t i = tile.first + lane_id() * 4;
    float4 rows[kTileRows];
    if (tile.whole) {
#pragma unroll
      for (int row = 0; row < kTileRows; ++row) {
        rows[row] = __ldcs(reinterpret_cast<const float4*>(from + i) + row * 32);
      }
    } else {
#pragma unroll
      for (int row = 0; row < kTileRows; ++row) {
        rows[row] = load4_part(from, i + row * 128, tile.first + tile.count);
      }
    }
#pragma unroll
    for (int row = 0; row < kTileRows; ++row) put(x, row, rows[row]);
  }

  static __device__ void load(float (&x)[kPerLane], const StagedTile& tile) {
#pragma unroll
    for (int row = 0; row < kTileRows; ++row) {
      put(x, row, reinterpret_cast<const float4*>(tile.elements)[row * 32 + lane_id()]);
    }
  }

  static __device__ void store(const float (&x)[kPerLane], float* to, const Tile& tile) {
    const std::size_t i = tile.first + lane_id() * 4;
    if (tile.whole) {
#pragma unroll
      for (int row = 0; row < kTileRows; ++row) {
        __stcs(reinterpret_cast<float4*>(to + i) + row * 32, get(x, row));
      }
    } else {
#pragma unroll
      for (int row = 0; row < kTileRows; ++row) {
        store4_part(to, i + row * 128, tile.first + tile.count, get(x, row));
      }
    }
  }

  /// Zeros where there are no elements.
  static __device__ void clear_beyond(float (&x)[kPerLane], const Tile& tile) {
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      if (i / 4 * 128u + lane_id() * 4 + i % 4 >= tile.count) x[i] = 0.0f;
    }
  }

  static __device__ float4 get(const float (&x)[kPerLane], int row) {
    return make_float4(x[4 * row], x[4 * row + 1], x[4 * row + 2], x[4 * row + 3]);
  }
  static __device__ void put(float (&x)[kPerLane], int row, float4 v) {
    x[4 * row] = v.x;
    x[4 * row + 1] = v.y;
    x[4 * row + 2] = v.z;
    x[4 * row + 3] = v.w;
  }
};

/// Lane l has the elements l, l + 32, ...
struct RowsOfOne {
  static __device__ void load(float (&x)[kPerLane], const float* from, const Tile& tile) {
    const float* mine = from + tile.first + lane_id();
    if (tile.whole) {
#pragma unroll
      for (int row = 0; row < kPerLane; ++row) x[row] = __ldcs(mine + row * 32);
    } else {
#pragma unroll
      for (int row = 0; row < kPerLane; ++row) {
        x[row] = row * 32u + lane_id() < tile.count ? __ldcs(mine + row * 32) : 0.0f;
      }
    }
  }

  static __device__ void load(float (&x)[kPerLane], const StagedTile& tile) {
#pragma unroll
    for (int row = 0; row < kPerLane; ++row) x[row] = tile.elements[row * 32 + lane_id()];
  }

  static __device__ void store(const float (&x)[kPerLane], float* to, const Tile& tile) {
    float* mine = to + tile.first + lane_id();
    if (tile.whole) {
#pragma unroll
      for (int row = 0; row < kPerLane; ++row) __stcs(mine + row * 32, x[row]);
    } else {
#pragma unroll
      for (int row = 0; row < kPerLane; ++row) {
        if (row * 32u + lane_id() < tile.count) __stcs(mine + row * 32, x[row]);
      }
    }
  }

  static __device__ void clear_beyond(float (&x)[kPerLane], const Tile& tile) {
#pragma unroll
    for (int row = 0; row < kPerLane; ++row) {
      if (row * 32u + lane_id() >= tile.count) x[row] = 0.0f;
    }
  }
};

/// x += residual
template <class Rows, Nan kNan>
__device__ inline void add_residual(float (&x)[kPerLane], const float* residual, const Tile& tile) {
  float e[kPerLane];
  Rows::load(e, residual, tile);
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    float unused;
    x[i] = sum_of<Source::Residual, kNan>(x[i], e[i], 0, 0, unused);
  }
}

/// kHalves 16-bit words per lane, from and to an encoded tile: as few accesses as there can be,
/// each of whole lines. An odd one is in the lower half of the last word.
template <int kHalves>
struct Words {
  static constexpr int kCount = (kHalves + 1) / 2;
  static constexpr int kWhole = kHalves / 2, kFours = kWhole / 4, kRest = kWhole % 4;

  static __device__ void store(const std::uint32_t (&words)[kCount], std::byte* slot) {
#pragma unroll
    for (int i = 0; i < kFours; ++i) {
      reinterpret_cast<uint4*>(slot)[i * 32 + lane_id()] =
          make_uint4(words[4 * i], words[4 * i + 1], words[4 * i + 2], words[4 * i + 3]);
    }
    if constexpr (kRest >= 2) {
      reinterpret_cast<uint2*>(slot + kFours * 512)[lane_id()] =
          make_uint2(words[4 * kFours], words[4 * kFours + 1]);
    }
    if constexpr (kRest % 2 == 1) {
      reinterpret_cast<std::uint32_t*>(slot + (kWhole - 1) * 128)[lane_id()] = words[kWhole - 1];
    }
    if constexpr (kHalves % 2 == 1) {
      reinterpret_cast<std::uint16_t*>(slot + kWhole * 128)[lane_id()] =
          static_cast<std::uint16_t>(words[kWhole]);
    }
  }

  static __device__ void load(std::uint32_t (&words)[kCount], const std::byte* slot) {
#pragma unroll
    for (int i = 0; i < kFours; ++i) {
      const uint4 v = __ldcg(reinterpret_cast<const uint4*>(slot) + i * 32 + lane_id());
      words[4 * i] = v.x;
      words[4 * i + 1] = v.y;
      words[4 * i + 2] = v.z;
      words[4 * i + 3] = v.w;
    }
    if constexpr (kRest >= 2) {
      const uint2 v = __ldcg(reinterpret_cast<const uint2*>(slot + kFours * 512) + lane_id());
      words[4 * kFours] = v.x;
      words[4 * kFours + 1] = v.y;
    }
    if constexpr (kRest % 2 == 1) {
      words[kWhole - 1] =
          __ldcg(reinterpret_cast<const std::uint32_t*>(slot + (kWhole - 1) * 128) + lane_id());
    }
    if constexpr (kHalves % 2 == 1) {
      words[kWhole] =
          __ldcg(reinterpret_cast<const std::uint16_t*>(slot + kWhole * 128) + lane_id());
    }
  }
};

}  // namespace tersum::gpu
