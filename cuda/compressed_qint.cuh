// The codec of tiles with qint (compressors/qint.cpp).
#pragma once

#include <utility>

#include "compressors/philox.hpp"
#include "cuda/compressed_kernel.cuh"
#include "cuda/qint_codec.cuh"

namespace tersum::gpu {

/// max(a, |x|), or a NaN if either is one.
__device__ inline float larger(float a, float x) {
  float result;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(fabsf(x)));
  return result;
}

/// The draws of one gradient in one step, but for who encodes.
__device__ inline compressors::DrawStream draws_of(const TileDraws& draws, std::uint64_t step) {
  return {step_key(draws.seed, draws.key, step), 0,
          static_cast<std::uint32_t>(compressors::Purpose::Rounding)};
}

/// Where the draws of an operation come from.
template <bool kStochastic>
class DrawContext {
 public:
  __device__ explicit DrawContext(const TileCall& call) {
    if constexpr (kStochastic) {
      const TileDraws& draws = call.draws;
      draws_ = draws_of(draws, draws.step_counter != nullptr
                                   ? *static_cast<volatile std::uint64_t*>(draws.step_counter)
                                   : draws.step);
    }
  }
  __device__ compressors::DrawStream draws(std::uint32_t encoder) const {
    return {{draws_.key[0], draws_.key[1]}, encoder, draws_.purpose};
  }
  /// Called by `warps` warps when they have ended: the last one counts the step.
  __device__ void finish(const TileCall& call, std::uint32_t warps) const {
    if constexpr (kStochastic) {
      const TileDraws& draws = call.draws;
      if (draws.finished == nullptr || lane_id() != 0) return;
      __threadfence();
      if (atomicAdd(draws.finished, 1u) + 1 != warps) return;
      *draws.finished = 0;
      *draws.step_counter += 1;
    }
  }

 private:
  compressors::DrawStream draws_;
};

/// Codes of kBits bits, levels plus 2^(kBits - 1): that many 16-bit words per lane. kOneBlock: a
/// tile is a block; otherwise blocks are smaller.
template <int kBits, bool kStochastic, bool kOneBlock, bool kWithFeedback>
struct QInt {
  using Rows = RowsOfFour;
  using Codes = Words<kBits>;
  using Context = DrawContext<kStochastic>;
  static constexpr bool kFeedback = kWithFeedback;
  static constexpr int kBlocks = 3;  // on a multiprocessor at once
  static constexpr Nan kNan = Nan::Any;
  static constexpr int kScales = kOneBlock ? 1 : kTileRows;
  static constexpr std::uint32_t kHalf = 1u << (kBits - 1);
  static constexpr float kCount = static_cast<float>(kHalf - 1);
  static constexpr float kInverse = 1.0f / kCount;

  struct Coded {
    std::uint32_t words[Codes::kCount];
    float scale[kScales];  // of the lane's block in each row

    __device__ float scale_of(int row) const { return scale[kOneBlock ? 0 : row]; }
  };

  /// True if the lane's elements of a row may be of another block than those of the row before.
  static __device__ bool begins_block(const TileCall& call, int row) {
    if (kOneBlock) return row == 0;
    return row == 0 || call.block < 128 || (row * 128u & (call.block - 1)) == 0;
  }

  /// Magnitudes of blocks.
  static __device__ void find_scales(const float (&x)[kPerLane], std::uint32_t block,
                                     float (&scale)[kScales]) {
    float rows[kTileRows];
#pragma unroll
    for (int row = 0; row < kTileRows; ++row) {
      rows[row] = fabsf(x[4 * row]);
#pragma unroll
      for (int c = 1; c < 4; ++c) rows[row] = larger(rows[row], x[4 * row + c]);
    }
    if constexpr (kOneBlock) {
      const float most = larger(larger(rows[0], rows[1]), larger(rows[2], rows[3]));
      scale[0] = float_of(__reduce_max_sync(kAllLanes, bits_of(most)));
    } else {
      find_small_scales(rows, block, scale);
    }
  }

  static __device__ void find_small_scales(float (&rows)[kTileRows], std::uint32_t block,
                                           float (&scale)[kScales]) {
    if (block == 256) {
      rows[0] = larger(rows[0], rows[1]);
      rows[2] = larger(rows[2], rows[3]);
    }
    const int lanes = min(static_cast<int>(block) / 4, 32);
#pragma unroll
    for (int row = 0; row < kScales; ++row) {
      std::uint32_t bits = bits_of(rows[row]);
      for (int o = lanes / 2; o > 0; o /= 2) bits = max(bits, __shfl_xor_sync(kAllLanes, bits, o));
      scale[row] = block == 256 && row % 2 == 1 ? scale[row - 1] : float_of(bits);
    }
  }

  /// The bits of 4 elements from and to the words of a lane.
  static __device__ void put(std::uint32_t (&words)[Codes::kCount], int row, std::uint32_t packed) {
    const int at = row * 4 * kBits, word = at / 32, shift = at % 32;
    words[word] |= packed << shift;
    if (shift + 4 * kBits > 32) words[word + 1] |= packed >> (32 - shift);
  }
  static __device__ std::uint32_t get(const std::uint32_t (&words)[Codes::kCount], int row) {
    const int at = row * 4 * kBits, word = at / 32, shift = at % 32;
    if (shift + 4 * kBits <= 32) return words[word] >> shift;
    return __funnelshift_r(words[word], words[word + 1], shift);
  }

  /// The codes of 4 levels: the sum of their bits, each where it belongs, less what the bits of
  /// kIntegerOffset make of it. One instruction for each.
  static __device__ std::uint32_t pack(float4 level) {
    constexpr std::uint32_t kOnes = 1u | 1u << kBits | 1u << 2 * kBits | 1u << 3 * kBits;
    std::uint32_t sum = bits_of(level.w);
    sum = (sum << kBits) + bits_of(level.z);
    sum = (sum << kBits) + bits_of(level.y);
    sum = (sum << kBits) + bits_of(level.x);
    return sum + (kHalf - kIntegerOffsetBits) * kOnes;
  }

  /// The codes of x. With `keep_left` x becomes what they leave.
  template <class Division>
  static __device__ void quantise(float (&x)[kPerLane], Coded& coded, const TileCall& call,
                                  const compressors::DrawStream& stream, std::uint64_t element,
                                  bool keep_left) {
    constexpr Levels kLevels{kBits, kCount, kInverse};
    uint2 draws[2] = {};
    Division divide(bits_of(coded.scale[0]));
#pragma unroll
    for (int row = 0; row < kTileRows; ++row) {
      if (row > 0 && begins_block(call, row)) divide = Division(bits_of(coded.scale_of(row)));
      if constexpr (kStochastic) {
        if (row % 2 == 0) draws_of_pair(stream, element + row * 128, draws[0], draws[1]);
      }
      const float4 v = Rows::get(x, row);
      const float4 level = quantise4<kStochastic>(v, divide, kCount, draws[row % 2]);
      put(coded.words, row, pack(level));
      if (kFeedback && keep_left) {
        Rows::put(x, row, left_of_levels4(v, level, divide, kLevels));
      }
    }
  }

  static __device__ Coded encode(float (&x)[kPerLane], const Tile& part, const TileCall& call,
                                 const Context& context, std::uint32_t encoder, bool keep_left) {
    Coded coded;
    find_scales(x, call.block, coded.scale);
#pragma unroll
    for (int i = 0; i < Codes::kCount; ++i) coded.words[i] = 0;
    bool plain = true;
#pragma unroll
    for (int i = 0; i < kScales; ++i) {
      plain = plain && (coded.scale[i] == 0.0f || is_in_plain_range(bits_of(coded.scale[i])));
    }
    const std::uint64_t element = call.draws.offset + part.first + lane_id() * 4;
    if (__all_sync(kAllLanes, plain)) {
      quantise<PlainDivider>(x, coded, call, context.draws(encoder), element, keep_left);
      return coded;
    }
    // Copies, so that only here they are in memory.
    float values[kPerLane];
    Coded codes = coded;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) values[i] = x[i];
    quantise_any(values, codes, call, context.draws(encoder), element, keep_left);
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) x[i] = values[i];
    return codes;
  }

  /// For scales that are not plain: rare, and apart so that it costs the others nothing.
  static __device__ __noinline__ void quantise_any(float (&x)[kPerLane], Coded& coded,
                                                   const TileCall& call,
                                                   const compressors::DrawStream& stream,
                                                   std::uint64_t element, bool keep_left) {
    quantise<Divider>(x, coded, call, stream, element, keep_left);
#pragma unroll
    for (int i = 0; i < kScales; ++i) {
      coded.scale[i] = float_of(scale_bits(bits_of(coded.scale[i])));
    }
  }

  /// Among the scales of a tile: that of the lane's block in a row.
  static __device__ unsigned scale_index(const TileCall& call, int row) {
    return (row * 128u + lane_id() * 4) >> call.block_shift;
  }

  static __device__ void store(const Coded& coded, const TileCall& call, std::byte* slot) {
    Codes::store(coded.words, slot);
    auto* scales = reinterpret_cast<float*>(slot + kBits * 64);
    if constexpr (kOneBlock) {
      if (lane_id() == 0) *scales = coded.scale[0];
    } else {
#pragma unroll
      for (int row = 0; row < kTileRows; ++row) {
        if ((row * 128u + lane_id() * 4 & (call.block - 1)) == 0) {
          scales[scale_index(call, row)] = coded.scale[row];
        }
      }
    }
  }

  static __device__ Coded load(const TileCall& call, const std::byte* slot) {
    Coded coded;
    Codes::load(coded.words, slot);
    const auto* scales = reinterpret_cast<const float*>(slot + kBits * 64);
#pragma unroll
    for (int i = 0; i < kScales; ++i) {
      coded.scale[i] = __ldcg(scales + (kOneBlock ? 0 : scale_index(call, i)));
    }
    return coded;
  }

  /// x = or += what the codes stand for.
  template <bool kAdd>
  static __device__ void decode(const Coded& coded, float (&x)[kPerLane]) {
#pragma unroll
    for (int row = 0; row < kTileRows; ++row) {
      const std::uint32_t packed = get(coded.words, row);
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        // Codes are left where they are, if those are the low bits of a float: 2^place times too
        // large, which the factor takes back. Multiples of powers of two are exact.
        const bool low = (c + 1) * kBits <= 23;
        const int place = (low ? c : c - 2) * kBits;
        const std::uint32_t mask = (2 * kHalf - 1) << place;
        const std::uint32_t bits = ((low ? packed : packed >> 2 * kBits) & mask) | 0x4b000000u;
        const float unit = static_cast<float>(1 << place);
        const float level =
            __fsub_rn(float_of(bits), 8388608.0f + static_cast<float>(kHalf) * unit);
        const float value = __fmul_rn(__fmul_rn(level, kInverse / unit), coded.scale_of(row));
        float& to = x[4 * row + c];
        to = kAdd ? __fadd_rn(to, value) : value;
      }
    }
  }

  /// After decoding, blocks that are not finite have the CPU's NaN.
  static __device__ void keep_poison(const Coded& coded, float (&x)[kPerLane]) {
#pragma unroll
    for (int i = 0; i < kScales; ++i) {
      if (coded.scale[i] == coded.scale[i]) continue;
#pragma unroll
      for (int e = 0; e < kPerLane; ++e) {
        if (kOneBlock || e / 4 == i) x[e] = coded.scale[i];
      }
    }
  }
};

/// Calls function.template operator()<Codec>() with the codec of a number of bits.
template <bool kStochastic, bool kOneBlock, bool kFeedback, class Function>
void with_bits(int bits, const Function& function) {
  [&]<int... kIndex>(std::integer_sequence<int, kIndex...>) {
    ((bits == kIndex + 2
          ? function.template operator()<QInt<kIndex + 2, kStochastic, kOneBlock, kFeedback>>()
          : void()),
     ...);
  }
  (std::make_integer_sequence<int, 7>());
}

/// The same with the codec of a call. Small blocks, which are rare, share kernels.
template <bool kStochastic, class Function>
void with_qint(int bits, bool one_block, bool feedback, const Function& function) {
  if (!one_block) return with_bits<kStochastic, false, true>(bits, function);
  if (feedback) return with_bits<kStochastic, true, true>(bits, function);
  with_bits<kStochastic, true, false>(bits, function);
}

template <bool kStochastic>
void launch_tiles_qint(const TileGroup& group, const TileCall& call, int bits, int blocks,
                       StreamView stream) {
  with_qint<kStochastic>(bits, call.block == kTile, has_feedback(call),
                         [&]<class Codec>() { launch_tiles<Codec>(group, call, blocks, stream); });
}

template <bool kStochastic>
void load_tile_kernels_qint() {
  for (int form = 0; form < 3; ++form) {
    for (int bits = 2; bits <= 8; ++bits) {
      with_qint<kStochastic>(bits, form > 0, form > 1,
                             []<class Codec>() { load_kernel(all_reduce_tiles<Codec>); });
    }
  }
}

}  // namespace tersum::gpu
