// Compressed all-reduce with sign (compressors/sign.cpp).
#include <bit>
#include <utility>

#include "cuda/compressed_kernel.cuh"
#include "cuda/sign_codec.cuh"

namespace tersum::gpu {
namespace {

/// Blocks of 32 * kBlockRows elements.
template <int kBlockRows, bool kWithFeedback>
struct Sign {
  using Rows = RowsOfOne;
  using Codes = Words<1>;
  static constexpr bool kFeedback = kWithFeedback;
  static constexpr int kBlocks = kWithFeedback ? 2 : 4;  // on a multiprocessor at once
  static constexpr int kScales = kPerLane / kBlockRows;
  static constexpr Nan kNan = Nan::Any;

  struct Coded {
    std::uint32_t words[1];  // sign bits of the lane's elements
    float scale[kScales];
  };

  struct Context {
    __device__ explicit Context(const TileCall&) {}
    __device__ void finish(const TileCall&, std::uint32_t) const {}
  };

  static __device__ Coded encode(float (&x)[kPerLane], float (&value)[kPerLane], const Tile& part,
                                 const TileCall&, const Context&, std::uint32_t) {
    constexpr std::uint32_t kBlock = 32 * kBlockRows;
    Coded coded{};
#pragma unroll
    for (int block = 0; block < kScales; ++block) {
      float sum = 0;
#pragma unroll
      for (int row = 0; row < kBlockRows; ++row) {
        sum = __fadd_rn(sum, fabsf(x[block * kBlockRows + row]));
      }
      const std::uint32_t first = block * kBlock;
      const float mean =
          mean_of(sum, first < part.count ? min(part.count - first, kBlock) : kBlock);
      coded.scale[block] = mean;
#pragma unroll
      for (int row = block * kBlockRows; row < (block + 1) * kBlockRows; ++row) {
        if (!is_poison(mean)) coded.words[0] |= bits_of(x[row]) >> 31 << row;
        if (kFeedback)
          x[row] = is_poison(mean) ? 0.0f : __fsub_rn(x[row], signed_mean(mean, x[row]));
      }
    }
    decode<false>(coded, value);
    return coded;
  }

  static __device__ void store(const Coded& coded, const TileCall&, std::byte* slot) {
    Codes::store(coded.words, slot);
    float mine = 0;
#pragma unroll
    for (int block = 0; block < kScales; ++block) {
      if (lane_id() == block) mine = coded.scale[block];
    }
    if (lane_id() < kScales) reinterpret_cast<float*>(slot + 64)[lane_id()] = mine;
  }

  static __device__ Coded load(const TileCall&, const std::byte* slot) {
    Coded coded;
    Codes::load(coded.words, slot);
#pragma unroll
    for (int block = 0; block < kScales; ++block) {
      coded.scale[block] = __ldcg(reinterpret_cast<const float*>(slot + 64) + block);
    }
    return coded;
  }

  template <bool kAdd>
  static __device__ void decode(const Coded& coded, float (&x)[kPerLane]) {
#pragma unroll
    for (int row = 0; row < kPerLane; ++row) {
      const std::uint32_t sign = coded.words[0] << (31 - row) & 0x80000000u;
      const float value = float_of(bits_of(coded.scale[row / kBlockRows]) ^ sign);
      x[row] = kAdd ? __fadd_rn(x[row], value) : value;
    }
  }

  static __device__ bool is_valid(const Coded& coded) {
    bool valid = true;
#pragma unroll
    for (int i = 0; i < kScales; ++i) valid = valid && is_scale(bits_of(coded.scale[i]));
    return valid;
  }
  static __device__ void keep_poison(const Coded&, float (&)[kPerLane]) {}
};

/// Calls function.template operator()<Codec>().
template <bool kFeedback, class Function>
void with_block(std::uint32_t block, const Function& function) {
  [&]<int... kShift>(std::integer_sequence<int, kShift...>) {
    ((block == 32u << kShift ? function.template operator()<Sign<1 << kShift, kFeedback>>()
                             : void()),
     ...);
  }
  (std::make_integer_sequence<int, 5>());
}

template <class Function>
void with_sign(std::uint32_t block, bool feedback, const Function& function) {
  feedback ? with_block<true>(block, function) : with_block<false>(block, function);
}

}  // namespace

void launch_tiles_sign(const TileGroup& group, const TileCall& call, StreamView stream) {
  with_sign(call.block, has_feedback(call),
            [&]<class Codec>() { launch_tiles<Codec>(group, call, stream); });
}

void load_tile_kernels_sign() {
  for (std::uint32_t block = 32; block <= kTile; block *= 2) {
    for (const bool feedback : {false, true}) {
      with_sign(block, feedback, []<class Codec>() { load_tile_kernel<Codec>(); });
    }
  }
}

}  // namespace tersum::gpu
