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
  static constexpr int kBlocks = kWithFeedback ? 2 : 3;  // on a multiprocessor at once
  static constexpr Nan kNan = Nan::Any;
  static constexpr int kScales = kOneBlock ? 1 : kTileRows;
  static constexpr std::uint32_t kHalf = 1u << (kBits - 1);
  static constexpr float kCount = static_cast<float>(kHalf - 1);
  static constexpr float kInverse = 1.0f / kCount;

  struct Coded {
    std::uint32_t words[Codes::kCount];
    float scale[kScales];  // of the lane's block in each row
  };

  static __device__ float of_row(const float (&scale)[kScales], int row) {
    return scale[kOneBlock ? 0 : row];
  }

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

  /// The levels of x plus kIntegerOffset, found without the CPU's three roundings; true if those
  /// cannot have led to others. Where they round, a product with one factor is off by 5 parts in
  /// 2^24 at most, which matters only beside the middle between two levels.
  static __device__ bool guess_levels(const float (&x)[kPerLane], const float (&scale)[kScales],
                                      const TileCall& call, float (&level)[kPerLane]) {
    float factor = 0, farthest = 0;
#pragma unroll
    for (int row = 0; row < kTileRows; ++row) {
      if (row == 0 || begins_block(call, row)) factor = levels_per_unit(of_row(scale, row));
#pragma unroll
      for (int i = 4 * row; i < 4 * row + 4; ++i) {
        level[i] = __fmaf_rn(x[i], factor, kIntegerOffset);
        const float off = __fmaf_rn(x[i], factor, __fsub_rn(kIntegerOffset, level[i]));
        farthest = fmaxf(farthest, fabsf(off));
      }
    }
    return farthest < 0.5f - kCount * 0x1p-21f;
  }

  /// kCount / scale, nearly; 0 for 0.
  static __device__ float levels_per_unit(float scale) {
    float reciprocal;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(reciprocal) : "f"(scale));
    return scale == 0.0f ? 0.0f : __fmul_rn(reciprocal, kCount);
  }

  /// The levels of x plus kIntegerOffset, as the CPU finds them.
  template <class Division>
  static __device__ void find_levels(const float (&x)[kPerLane], const float (&scale)[kScales],
                                     const TileCall& call, const compressors::DrawStream& stream,
                                     std::uint64_t element, float (&level)[kPerLane]) {
    uint2 draws[2] = {};
    Division divide(bits_of(scale[0]));
#pragma unroll
    for (int row = 0; row < kTileRows; ++row) {
      if (row > 0 && begins_block(call, row)) divide = Division(bits_of(of_row(scale, row)));
      if constexpr (kStochastic) {
        if (row % 2 == 0) draws_of_pair(stream, element + row * 128, draws[0], draws[1]);
      }
      Rows::put(level, row,
                quantise4<kStochastic>(Rows::get(x, row), divide, kCount, draws[row % 2]));
    }
  }

  struct Scales {
    float of_block[kScales];
  };

  /// The same for any scales: rare, and apart so that it costs the others nothing.
  static __device__ __noinline__ Elements find_levels_apart(Elements x, Scales scales,
                                                            const TileCall& call,
                                                            const compressors::DrawStream& stream,
                                                            std::uint64_t element) {
    Elements level;
    find_levels<Divider>(x.of_lane, scales.of_block, call, stream, element, level.of_lane);
    return level;
  }

  /// The codes of levels. Each word is a sum of their bits, each where it belongs, less what the
  /// bits of kIntegerOffset make of it: one instruction for a level.
  static __device__ void pack(const float (&level)[kPerLane],
                              std::uint32_t (&words)[Codes::kCount]) {
    if constexpr (32 % kBits == 0) {
      constexpr int kInWord = 32 / kBits;
#pragma unroll
      for (int word = 0; word < Codes::kCount; ++word) {
        words[word] = sum_of_codes<kInWord>(level + word * kInWord);
      }
    } else {
#pragma unroll
      for (int i = 0; i < Codes::kCount; ++i) words[i] = 0;
#pragma unroll
      for (int row = 0; row < kTileRows; ++row) {
        const std::uint32_t packed = sum_of_codes<4>(level + 4 * row);
        const int at = row * 4 * kBits, word = at / 32, shift = at % 32;
        words[word] |= packed << shift;
        if (shift + 4 * kBits > 32) words[word + 1] |= packed >> (32 - shift);
      }
    }
  }
  template <int kLevels>
  static __device__ std::uint32_t sum_of_codes(const float* level) {
    std::uint32_t sum = bits_of(level[kLevels - 1]), ones = 1;
#pragma unroll
    for (int i = kLevels - 2; i >= 0; --i) {
      sum = (sum << kBits) + bits_of(level[i]);
      ones = (ones << kBits) + 1;
    }
    return sum + (kHalf - kIntegerOffsetBits) * ones;
  }

  /// The bits of 4 elements from the words of a lane, perhaps with others above them.
  static __device__ std::uint32_t get(const std::uint32_t (&words)[Codes::kCount], int row) {
    const int at = row * 4 * kBits, word = at / 32, shift = at % 32;
    if (shift + 4 * kBits <= 32) return words[word] >> shift;
    return __funnelshift_r(words[word], words[word + 1], shift);
  }

  static __device__ Coded encode(float (&x)[kPerLane], float (&value)[kPerLane], const Tile& part,
                                 const TileCall& call, const Context& context,
                                 std::uint32_t encoder) {
    Coded coded;
    find_scales(x, call.block, coded.scale);
    bool good = true;
#pragma unroll
    for (int i = 0; i < kScales; ++i) {
      good = good && (coded.scale[i] == 0.0f || is_in_plain_range(bits_of(coded.scale[i])));
    }
    const std::uint64_t element = call.draws.offset + part.first + lane_id() * 4;
    float level[kPerLane];
    if constexpr (!kStochastic) good = guess_levels(x, coded.scale, call, level) && good;
    good = __all_sync(kAllLanes, good);
    if constexpr (kStochastic) {
      if (good) {
        find_levels<PlainDivider>(x, coded.scale, call, context.draws(encoder), element, level);
      }
    }
    if (!good) {
      Scales scales;
#pragma unroll
      for (int i = 0; i < kScales; ++i) scales.of_block[i] = coded.scale[i];
      assign(level, find_levels_apart(elements(x), scales, call, context.draws(encoder), element));
    }
    pack(level, coded.words);
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const float share = __fmul_rn(__fsub_rn(level[i], kIntegerOffset), kInverse);
      value[i] = __fmul_rn(share, of_row(coded.scale, i / 4));
      if (kFeedback) x[i] = __fsub_rn(x[i], value[i]);
    }
    if (!good) {
#pragma unroll
      for (int i = 0; i < kScales; ++i) {
        coded.scale[i] = float_of(scale_bits(bits_of(coded.scale[i])));
      }
      if constexpr (kFeedback) {
#pragma unroll
        for (int i = 0; i < kPerLane; ++i) x[i] = finite_or_zero(x[i]);
      }
    }
    return coded;
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

  /// word & mask | bits in one instruction, which the compiler does not make of two constants.
  static __device__ std::uint32_t masked(std::uint32_t word, std::uint32_t mask,
                                         std::uint32_t bits) {
    std::uint32_t result;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(result) : "r"(word), "r"(mask), "r"(bits));
    return result;
  }

  /// x = or += what the codes stand for.
  template <bool kAdd>
  static __device__ void decode(const Coded& coded, float (&x)[kPerLane]) {
    constexpr std::uint32_t kExponent = 0x4b000000u;  // of 2^23
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
        const std::uint32_t bits = masked(low ? packed : packed >> 2 * kBits, mask, kExponent);
        const float unit = static_cast<float>(1 << place);
        const float level =
            __fsub_rn(float_of(bits), 8388608.0f + static_cast<float>(kHalf) * unit);
        const float value = __fmul_rn(__fmul_rn(level, kInverse / unit), of_row(coded.scale, row));
        float& to = x[4 * row + c];
        to = kAdd ? __fadd_rn(to, value) : value;
      }
    }
  }

  /// False for scales that no encoder makes.
  static __device__ bool is_valid(const Coded& coded) {
    bool valid = true;
#pragma unroll
    for (int i = 0; i < kScales; ++i) valid = valid && is_scale(bits_of(coded.scale[i]));
    return valid;
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
void launch_tiles_qint(const TileGroup& group, const TileCall& call, int bits, StreamView stream) {
  with_qint<kStochastic>(bits, call.block == kTile, has_feedback(call),
                         [&]<class Codec>() { launch_tiles<Codec>(group, call, stream); });
}

template <bool kStochastic>
void load_tile_kernels_qint() {
  for (int form = 0; form < 3; ++form) {
    for (int bits = 2; bits <= 8; ++bits) {
      with_qint<kStochastic>(bits, form > 0, form > 1,
                             []<class Codec>() { load_tile_kernel<Codec>(); });
    }
  }
}

}  // namespace tersum::gpu
