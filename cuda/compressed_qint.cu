// Compressed all-reduce with qint (compressors/qint.cpp).
#include <utility>

#include "compressors/philox.hpp"
#include "cuda/compressed_kernel.cuh"
#include "cuda/qint_codec.cuh"

namespace tersum::gpu {
namespace {

/// max(a, |x|), or a NaN if either is one.
__device__ float larger(float a, float x) {
  float result;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(fabsf(x)));
  return result;
}

/// The key of the draws of one gradient in one step (compressors/philox.hpp).
__device__ compressors::DrawStream draws_of(const TileDraws& draws, std::uint64_t step) {
  const auto low = [](std::uint64_t x) { return static_cast<std::uint32_t>(x); };
  const compressors::DrawStream seed{
      {low(draws.seed), low(draws.seed >> 32)}, low(step), low(step >> 32)};
  const uint4 words = draw_group(seed, draws.key);
  return {{words.x, words.y}, 0, static_cast<std::uint32_t>(compressors::Purpose::Rounding)};
}

template <int kBits, bool kStochastic>
struct QInt {
  using Rows = RowsOfFour;
  using Codes = Words<kBits>;
  static constexpr int kWords = Codes::kCount;
  static constexpr int kBlocks = kStochastic ? 3 : 4;  // on a multiprocessor at once
  static constexpr Nan kNan = Nan::Any;
  static constexpr float kCount = static_cast<float>((1 << (kBits - 1)) - 1);
  static constexpr float kInverse = 1.0f / kCount;

  struct Coded {
    std::uint32_t words[kWords];
    float scale[kTileRows];  // of the lane's block in each row
  };

  class Context {
   public:
    __device__ explicit Context(const TileCall& call) {
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

  /// The scale of the lane's block in each row. All of them are bits of magnitudes.
  static __device__ void find_scales(const float (&x)[kPerLane], std::uint32_t block,
                                     float (&scale)[kTileRows]) {
#pragma unroll
    for (int row = 0; row < kTileRows; ++row) {
      scale[row] = 0;
#pragma unroll
      for (int c = 0; c < 4; ++c) scale[row] = larger(scale[row], x[4 * row + c]);
    }
    if (block < 128) {
#pragma unroll
      for (int row = 0; row < kTileRows; ++row) {
        std::uint32_t bits = bits_of(scale[row]);
        for (int o = static_cast<int>(block) / 8; o > 0; o /= 2) {
          bits = max(bits, __shfl_xor_sync(kAllLanes, bits, o));
        }
        scale[row] = float_of(bits);
      }
      return;
    }
    // The maxima of all rows of a block meet in its first row.
#pragma unroll
    for (int rows = 2; rows <= kTileRows; rows *= 2) {
      if (block < rows * 128u) continue;
#pragma unroll
      for (int row = 0; row < kTileRows; row += rows) {
        scale[row] = larger(scale[row], scale[row + rows / 2]);
      }
    }
    float found = 0;
#pragma unroll
    for (int row = 0; row < kTileRows; ++row) {
      if ((row * 128u & (block - 1)) == 0) {
        found = float_of(__reduce_max_sync(kAllLanes, bits_of(scale[row])));
      }
      scale[row] = found;
    }
  }

  /// The bits of 4 elements from and to the words of a lane.
  static __device__ void put(std::uint32_t (&words)[kWords], int row, std::uint32_t packed) {
    const int at = row * 4 * kBits, word = at / 32, shift = at % 32;
    words[word] |= packed << shift;
    if (shift + 4 * kBits > 32) words[word + 1] |= packed >> (32 - shift);
  }
  static __device__ std::uint32_t get(const std::uint32_t (&words)[kWords], int row) {
    const int at = row * 4 * kBits, word = at / 32, shift = at % 32;
    if (shift + 4 * kBits <= 32) return words[word] >> shift;
    return __funnelshift_r(words[word], words[word + 1], shift);
  }

  /// True for scales with which PlainDivider works.
  static __device__ bool is_plain(float scale) {
    return scale == 0.0f || is_in_plain_range(bits_of(scale));
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
      if (row > 0 && begins_block(call, row)) divide = Division(bits_of(coded.scale[row]));
      if constexpr (kStochastic) {
        if (row % 2 == 0) draws_of_pair(stream, element + row * 128, draws[0], draws[1]);
      }
      const float4 v = Rows::get(x, row);
      float4 level;
      put(coded.words, row, quantise4<kStochastic>(v, divide, kLevels, draws[row % 2], level));
      if (keep_left) Rows::put(x, row, left_of_levels4(v, level, divide, kLevels));
    }
  }

  static __device__ Coded encode(float (&x)[kPerLane], const Tile& part, const TileCall& call,
                                 const Context& context, std::uint32_t encoder, bool keep_left) {
    Coded coded;
    find_scales(x, call.block, coded.scale);
#pragma unroll
    for (int i = 0; i < kWords; ++i) coded.words[i] = 0;
    bool plain = true;
#pragma unroll
    for (int row = 0; row < kTileRows; ++row) plain = plain && is_plain(coded.scale[row]);
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
    for (int row = 0; row < kTileRows; ++row) {
      coded.scale[row] = float_of(scale_bits(bits_of(coded.scale[row])));
    }
  }

  /// True if the lane's elements of a row may be of another block than those of the row before.
  static __device__ bool begins_block(const TileCall& call, int row) {
    return call.block < 128 || (row * 128u & (call.block - 1)) == 0;
  }

  /// Where the scale of the lane's block in a row lies.
  static __device__ unsigned scale_index(const TileCall& call, int row) {
    return (row * 128u + lane_id() * 4) >> call.block_shift;
  }

  static __device__ void store(const Coded& coded, const TileCall& call, std::byte* slot) {
    Codes::store(coded.words, slot);
    auto* scales = reinterpret_cast<float*>(slot + kBits * 64);
    if (call.block < 128) {
#pragma unroll
      for (int row = 0; row < kTileRows; ++row) {
        if ((lane_id() * 4 & (call.block - 1)) == 0)
          scales[scale_index(call, row)] = coded.scale[row];
      }
      return;
    }
    // One access for all of them: it is a packet on the wire.
    float mine = 0;
#pragma unroll
    for (int row = 0; row < kTileRows; ++row) {
      if (row * 128u == lane_id() * call.block) mine = coded.scale[row];
    }
    if (lane_id() * call.block < kTile) scales[lane_id()] = mine;
  }

  static __device__ Coded load(const TileCall& call, const std::byte* slot) {
    Coded coded;
    Codes::load(coded.words, slot);
    const auto* scales = reinterpret_cast<const float*>(slot + kBits * 64);
#pragma unroll
    for (int row = 0; row < kTileRows; ++row) {
      if (row == 0 || begins_block(call, row)) {
        coded.scale[row] = __ldcg(scales + scale_index(call, row));
      } else {
        coded.scale[row] = coded.scale[row - 1];
      }
    }
    return coded;
  }

  /// x = or += what the codes stand for.
  template <bool kAdd>
  static __device__ void decode(const Coded& coded, float (&x)[kPerLane]) {
    constexpr std::uint32_t kHalf = 1u << (kBits - 1), kMask = 2 * kHalf - 1;
    constexpr std::uint32_t kHalves =
        kHalf | kHalf << kBits | kHalf << 2 * kBits | kHalf << 3 * kBits;
    // Levels plus kHalf, as the low bits of a float from 2^23 on.
    constexpr float kOffset = 8388608.0f + static_cast<float>(kHalf);
#pragma unroll
    for (int row = 0; row < kTileRows; ++row) {
      const std::uint32_t packed = get(coded.words, row) ^ kHalves;
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const float level =
            __fsub_rn(float_of((packed >> (c * kBits) & kMask) | 0x4b000000u), kOffset);
        const float value = __fmul_rn(__fmul_rn(level, kInverse), coded.scale[row]);
        float& to = x[4 * row + c];
        to = kAdd ? __fadd_rn(to, value) : value;
      }
    }
  }

  /// After decoding, blocks that are not finite have the CPU's NaN.
  static __device__ void keep_poison(const Coded& coded, float (&x)[kPerLane]) {
#pragma unroll
    for (int row = 0; row < kTileRows; ++row) {
      if (coded.scale[row] == coded.scale[row]) continue;
#pragma unroll
      for (int c = 0; c < 4; ++c) x[4 * row + c] = coded.scale[row];
    }
  }
};

/// Calls function.template operator()<Codec>().
template <bool kStochastic, class Function>
void with_bits(int bits, const Function& function) {
  [&]<int... kIndex>(std::integer_sequence<int, kIndex...>) {
    ((bits == kIndex + 2 ? function.template operator()<QInt<kIndex + 2, kStochastic>>() : void()),
     ...);
  }
  (std::make_integer_sequence<int, 7>());
}

}  // namespace

void launch_tiles_qint(const TileGroup& group, const TileCall& call, int bits, bool stochastic,
                       int blocks, StreamView stream) {
  const auto run = [&]<class Codec>() { launch_tiles<Codec>(group, call, blocks, stream); };
  if (stochastic) {
    with_bits<true>(bits, run);
  } else {
    with_bits<false>(bits, run);
  }
}

void load_tile_kernels_qint() {
  for (int bits = 2; bits <= 8; ++bits) {
    const auto load = []<class Codec>() { load_kernel(all_reduce_tiles<Codec>); };
    with_bits<true>(bits, load);
    with_bits<false>(bits, load);
  }
}

}  // namespace tersum::gpu
