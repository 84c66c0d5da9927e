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

/// Whole tiles of up to kArrays arrays on their way from memory.
template <int kArrays>
struct alignas(16) StagedTiles {
  float elements[kArrays][kTile];

  /// Begins to fetch a tile of an array, with all lanes, as what is used once.
  __device__ void fetch(int array, const float* from, const Tile& tile, std::uint64_t once) {
    const float* source = from + tile.first + lane_id() * 4;
    const auto target =
        static_cast<std::uint32_t>(__cvta_generic_to_shared(elements[array] + lane_id() * 4));
#pragma unroll
    for (int row = 0; row < kTileRows; ++row) {
      asm volatile(
          "cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(target + row * 512),
          "l"(source + row * 128), "l"(once)
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

/// How L2 is told that memory is used once.
__device__ inline std::uint64_t used_once() {
  std::uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0;" : "=l"(policy));
  return policy;
}

/// A lane's elements of a tile, to be passed by value: what is called apart then gets them in
/// registers, and the caller's need not be in memory.
struct Elements {
  float of_lane[kPerLane];
};
__device__ inline Elements elements(const float (&x)[kPerLane]) {
  Elements all;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) all.of_lane[i] = x[i];
  return all;
}
__device__ inline void assign(float (&x)[kPerLane], const Elements& all) {
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) x[i] = all.of_lane[i];
}

/// Tiles that are not whole: rare, and apart so that they cost the others nothing. Elements that do
/// not exist are zero.
template <class Rows>
static __device__ __noinline__ Elements load_part(const float* from, std::uint32_t count) {
  Elements x;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const std::uint32_t at = Rows::place(i);
    x.of_lane[i] = at < count ? __ldcs(from + at) : 0.0f;
  }
  return x;
}
template <class Rows>
static __device__ __noinline__ void store_part(Elements x, float* to, std::uint32_t count) {
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const std::uint32_t at = Rows::place(i);
    if (at < count) __stcs(to + at, x.of_lane[i]);
  }
}

/// The elements of a tile: from shared memory if the tile is whole, otherwise from where it is.
template <class Rows>
__device__ inline void load_tile(float (&x)[kPerLane], const float* staged, const float* from,
                                 const Tile& tile) {
  if (tile.whole) {
    Rows::load(x, staged);
  } else {
    assign(x, load_part<Rows>(from + tile.first, tile.count));
  }
}

template <class Rows>
__device__ inline void store_tile(const float (&x)[kPerLane], float* to, const Tile& tile) {
  if (tile.whole) {
    Rows::store(x, to + tile.first);
  } else {
    store_part<Rows>(elements(x), to + tile.first, tile.count);
  }
}

/// Lane l has the elements 4 l to 4 l + 3 of each row of 128.
struct RowsOfFour {
  /// Of the lane's element i, in the tile.
  static __device__ std::uint32_t place(int i) { return i / 4 * 128 + lane_id() * 4 + i % 4; }

  static __device__ void load(float (&x)[kPerLane], const float* staged) {
#pragma unroll
    for (int row = 0; row < kTileRows; ++row) {
      put(x, row, reinterpret_cast<const float4*>(staged)[row * 32 + lane_id()]);
    }
  }

  static __device__ void store(const float (&x)[kPerLane], float* to) {
#pragma unroll
    for (int row = 0; row < kTileRows; ++row) {
      __stcs(reinterpret_cast<float4*>(to) + row * 32 + lane_id(), get(x, row));
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
  static __device__ std::uint32_t place(int i) { return i * 32 + lane_id(); }

  static __device__ void load(float (&x)[kPerLane], const float* staged) {
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) x[i] = staged[place(i)];
  }

  static __device__ void store(const float (&x)[kPerLane], float* to) {
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) __stcs(to + place(i), x[i]);
  }
};

/// Zeros where there are no elements.
template <class Rows>
__device__ inline void clear_beyond(float (&x)[kPerLane], const Tile& tile) {
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    if (Rows::place(i) >= tile.count) x[i] = 0.0f;
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
