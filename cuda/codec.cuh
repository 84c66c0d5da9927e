// What the kernels of the twins share: memory access, the sum that is sent, casts, draws, headers.
//
// Results must have the CPU's bits. Files that include this are compiled without fused
// multiply-add; NaN needs care, because the device's arithmetic forgets which NaN came in and the
// CPU's keeps it.
#pragma once

#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <array>
#include <cstddef>
#include <cstdint>

#include "compressors/payload.hpp"
#include "compressors/philox.hpp"
#include "cuda/error.hpp"
#include "cuda/twin.hpp"

namespace tersum::gpu {

inline constexpr unsigned kAllLanes = 0xffffffffu;
inline constexpr std::uint32_t kMagnitudeMask = 0x7fffffffu;
inline constexpr std::uint32_t kInfinityBits = 0x7f800000u;
inline constexpr std::uint32_t kPoisonBits = 0x7fc00000u;  // scale of a block that is not finite

__device__ inline std::uint32_t bits_of(float x) {
  return __float_as_uint(x);
}
__device__ inline float float_of(std::uint32_t bits) {
  return __uint_as_float(bits);
}
__device__ inline std::uint32_t magnitude_of(float x) {
  return bits_of(x) & kMagnitudeMask;
}
__device__ inline float finite_or_zero(float x) {
  return magnitude_of(x) < kInfinityBits ? x : 0.0f;
}
/// `result` of an operation whose only operand that can be a NaN is `x`, with x's NaN if it is one.
__device__ inline float keep_nan(float result, float x) {
  return magnitude_of(x) > kInfinityBits ? float_of(bits_of(x) | 0x00400000u) : result;
}

/// True if `pointer` allows accesses of 16 bytes.
inline bool is_vector_aligned(const void* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0;
}

/// Elements i .. i + 3 of `x`, read once; zero beyond `count`.
__device__ inline float4 load4(const float* x, std::size_t i, std::size_t count, bool aligned) {
  if (aligned && i + 4 <= count) return __ldcs(reinterpret_cast<const float4*>(x + i));
  float4 v = make_float4(0, 0, 0, 0);
  if (i < count) v.x = __ldcs(x + i);
  if (i + 1 < count) v.y = __ldcs(x + i + 1);
  if (i + 2 < count) v.z = __ldcs(x + i + 2);
  if (i + 3 < count) v.w = __ldcs(x + i + 3);
  return v;
}

__device__ inline void store4(float* x, std::size_t i, std::size_t count, bool aligned, float4 v) {
  if (aligned && i + 4 <= count) {
    __stcs(reinterpret_cast<float4*>(x + i), v);
    return;
  }
  if (i < count) __stcs(x + i, v.x);
  if (i + 1 < count) __stcs(x + i + 1, v.y);
  if (i + 2 < count) __stcs(x + i + 2, v.z);
  if (i + 3 < count) __stcs(x + i + 3, v.w);
}

/// Where the vector that is sent comes from.
enum class Source {
  Gradient,  ///< p = g
  Residual,  ///< p = g + e
  Momentum,  ///< u' = m u + g, p = e + u'
};

/// Arguments of a kernel that encodes: the arrays of Twin::Input, and how they may be read.
struct Feed {
  const float* gradient;
  const float* residual;
  float* residual_next;
  const float* velocity;
  float* velocity_next;
  float momentum;
  bool aligned;  // all of them to 16 bytes
  std::size_t count;
};

/// Whether it matters which NaN is sent.
enum class Nan { Any, Kept };

template <Source kSource, Nan kNan>
__device__ inline float sum_of(float gradient, float residual, float velocity, float momentum,
                               float& velocity_next) {
  if constexpr (kSource == Source::Gradient) return gradient;
  float sum = gradient;
  if constexpr (kSource == Source::Momentum) {
    sum = __fadd_rn(__fmul_rn(momentum, velocity), gradient);
    velocity_next = finite_or_zero(sum);
  }
  sum = __fadd_rn(residual, sum);
  return kNan == Nan::Kept ? keep_nan(sum, gradient) : sum;
}

/// Element i of what is sent; zero beyond the end. With kStore it writes the next velocity, too.
template <Source kSource, bool kStore, Nan kNan = Nan::Kept>
__device__ inline float feed1(const Feed& feed, std::size_t i) {
  if (i >= feed.count) return 0.0f;
  const float g = __ldcs(feed.gradient + i);
  float e = 0, u = 0, next = 0;
  if constexpr (kSource != Source::Gradient) e = __ldcs(feed.residual + i);
  if constexpr (kSource == Source::Momentum) u = __ldcs(feed.velocity + i);
  const float sum = sum_of<kSource, kNan>(g, e, u, feed.momentum, next);
  if constexpr (kSource == Source::Momentum && kStore) __stcs(feed.velocity_next + i, next);
  return sum;
}

/// Elements i .. i + 3 of what is sent; i is a multiple of 4. kFull: all are there, and everything
/// is aligned to 16 bytes.
template <Source kSource, bool kStore, Nan kNan = Nan::Kept, bool kFull = false>
__device__ inline float4 feed4(const Feed& feed, std::size_t i) {
  const auto load = [&](const float* x) {
    return kFull ? __ldcs(reinterpret_cast<const float4*>(x + i))
                 : load4(x, i, feed.count, feed.aligned);
  };
  const float4 g = load(feed.gradient);
  if constexpr (kSource == Source::Gradient) return g;
  const float4 e = load(feed.residual);
  float4 u = make_float4(0, 0, 0, 0);
  float4 next = u;
  if constexpr (kSource == Source::Momentum) u = load(feed.velocity);
  const float4 sum = make_float4(sum_of<kSource, kNan>(g.x, e.x, u.x, feed.momentum, next.x),
                                 sum_of<kSource, kNan>(g.y, e.y, u.y, feed.momentum, next.y),
                                 sum_of<kSource, kNan>(g.z, e.z, u.z, feed.momentum, next.z),
                                 sum_of<kSource, kNan>(g.w, e.w, u.w, feed.momentum, next.w));
  if constexpr (kSource == Source::Momentum && kStore) {
    store4(feed.velocity_next, i, feed.count, kFull || feed.aligned, next);
  }
  return sum;
}

/// 1.5 * 2^23: adding it to a number of a few bits rounds that to an integer (to nearest even, or
/// down), whose two's complement is then in the low bits of the sum. Cheaper than conversions.
inline constexpr float kIntegerOffset = 12582912.0f;
inline constexpr std::uint32_t kIntegerOffsetBits = 0x4b400000u;

/// The residual that is left of `sum` when `decoded` arrives.
__device__ inline float left_over(float sum, float decoded) {
  return finite_or_zero(__fsub_rn(sum, decoded));
}

__device__ inline float4 left_over4(float4 sum, float4 decoded) {
  return make_float4(left_over(sum.x, decoded.x), left_over(sum.y, decoded.y),
                     left_over(sum.z, decoded.z), left_over(sum.w, decoded.w));
}

/// fp32 to fp16 and bf16 and back, with the bits of compressors/convert.hpp.
__device__ inline std::uint16_t half_of(float x) {
  const std::uint32_t bits = bits_of(x);
  if ((bits & kMagnitudeMask) > kInfinityBits) {
    return static_cast<std::uint16_t>((bits >> 16 & 0x8000u) | 0x7e00u | (bits >> 13 & 0x3ffu));
  }
  return __half_as_ushort(__float2half_rn(x));
}
__device__ inline float float_of_half(std::uint16_t half) {
  if ((half & 0x7fffu) > 0x7c00u) {
    return float_of((half & 0x8000u) << 16 | kInfinityBits | (half & 0x3ffu) << 13);
  }
  return __half2float(__ushort_as_half(half));
}
__device__ inline std::uint16_t bfloat_of(float x) {
  const std::uint32_t bits = bits_of(x);
  if ((bits & kMagnitudeMask) > kInfinityBits) {
    return static_cast<std::uint16_t>(bits >> 16 | 0x40u);
  }
  return static_cast<std::uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}
__device__ inline float float_of_bfloat(std::uint16_t bfloat) {
  return float_of(static_cast<std::uint32_t>(bfloat) << 16);
}

/// One group of draws: Philox4x32-10 of {group, rank, purpose} under the stream's key, as
/// compressors/philox.hpp lays it out.
__device__ inline uint4 draw_group(const compressors::DrawStream& stream, std::uint64_t group) {
  uint4 c = make_uint4(static_cast<std::uint32_t>(group), static_cast<std::uint32_t>(group >> 32),
                       stream.rank, stream.purpose);
  std::uint32_t k0 = stream.key[0];
  std::uint32_t k1 = stream.key[1];
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = std::uint64_t{0xD2511F53u} * c.x;
    const std::uint64_t p1 = std::uint64_t{0xCD9E8D57u} * c.z;
    c = make_uint4(static_cast<std::uint32_t>(p1 >> 32) ^ c.y ^ k0, static_cast<std::uint32_t>(p1),
                   static_cast<std::uint32_t>(p0 >> 32) ^ c.w ^ k1, static_cast<std::uint32_t>(p0));
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return c;
}

/// The key of the draws of one gradient in one step.
__device__ inline std::array<std::uint32_t, 2> step_key(std::uint64_t seed, std::uint64_t key,
                                                        std::uint64_t step) {
  const auto low = [](std::uint64_t x) { return static_cast<std::uint32_t>(x); };
  const uint4 words = draw_group({{low(seed), low(seed >> 32)}, low(step), low(step >> 32)}, key);
  return {words.x, words.y};
}

/// The draws of one encoder, in a step that may be on the device.
struct Draws {
  Draws(const TwinContext& context, compressors::Purpose purpose)
      : stream_(compressors::draw_stream(context, purpose)),
        seed_(context.seed),
        key_(context.key),
        step_(context.device_step) {}

  /// For kernels. Without a step on the device the host has done it.
  __device__ compressors::DrawStream stream() const {
    if (step_ == nullptr) return stream_;
    return {step_key(seed_, key_, *step_), stream_.rank, stream_.purpose};
  }

 private:
  compressors::DrawStream stream_;
  std::uint64_t seed_, key_;
  const std::uint64_t* step_;
};

/// The header of a payload, as a kernel's argument.
inline PayloadHeader make_header(std::uint16_t wire_id, std::uint8_t flags, std::size_t count,
                                 std::size_t payload_bytes) {
  return {wire_id, 1, flags, static_cast<std::uint32_t>(payload_bytes - compressors::kHeaderBytes),
          count};
}
__device__ inline void write_header(std::byte* payload, const PayloadHeader& header) {
  *reinterpret_cast<PayloadHeader*>(payload) = header;
}
__device__ inline bool same_header(const std::byte* payload, const PayloadHeader& header) {
  const auto& found = *reinterpret_cast<const PayloadHeader*>(payload);
  return found.wire_id == header.wire_id && found.wire_version == header.wire_version &&
         found.flags == header.flags && found.body_bytes == header.body_bytes &&
         found.count == header.count;
}
/// Keeps the first fault.
__device__ inline void report_fault(std::uint32_t* fault, DecodeStatus::Fault what) {
  atomicCAS(fault, static_cast<std::uint32_t>(DecodeStatus::kNone),
            static_cast<std::uint32_t>(what));
}

/// Word `index` of an array of `bytes` bytes that starts at a multiple of 4; bytes beyond the end
/// read as zero.
__device__ inline std::uint32_t load_word(const std::byte* array, std::size_t index,
                                          std::size_t bytes) {
  if (index * 4 + 4 <= bytes) return __ldg(reinterpret_cast<const std::uint32_t*>(array) + index);
  std::uint32_t word = 0;
  for (std::size_t b = index * 4; b < bytes; ++b) {
    word |= static_cast<std::uint32_t>(array[b]) << (8 * (b % 4));
  }
  return word;
}

/// The other way; writes nothing beyond the end.
__device__ inline void store_word(std::byte* array, std::size_t index, std::size_t bytes,
                                  std::uint32_t word) {
  if (index * 4 + 4 <= bytes) {
    reinterpret_cast<std::uint32_t*>(array)[index] = word;
    return;
  }
  for (std::size_t b = index * 4; b < bytes; ++b) {
    array[b] = static_cast<std::byte>(word >> (8 * (b % 4)));
  }
}

/// Applies a decoded element.
template <bool kAdd>
__device__ inline float applied(float old, float scale, float decoded) {
  return kAdd ? __fadd_rn(old, __fmul_rn(scale, decoded)) : decoded;
}

/// Blocks for `work` items at `per_block` each; at least 1.
inline unsigned blocks_for(std::size_t work, std::size_t per_block) {
  const std::size_t blocks = (work + per_block - 1) / per_block;
  return static_cast<unsigned>(blocks == 0 ? 1 : blocks);
}

/// Calls launch(std::integral_constant<Source, ...>) with the source of an input.
template <class Input, class Launch>
void for_source(const Input& input, const Launch& launch) {
  if (input.velocity != nullptr) {
    launch(std::integral_constant<Source, Source::Momentum>());
  } else if (input.residual_next != nullptr) {
    launch(std::integral_constant<Source, Source::Residual>());
  } else {
    launch(std::integral_constant<Source, Source::Gradient>());
  }
}

template <class Input>
Feed make_feed(const Input& input) {
  const bool aligned = is_vector_aligned(input.gradient) && is_vector_aligned(input.residual) &&
                       is_vector_aligned(input.residual_next) &&
                       is_vector_aligned(input.velocity) && is_vector_aligned(input.velocity_next);
  return {input.gradient, input.residual, input.residual_next, input.velocity, input.velocity_next,
          input.momentum, aligned,        input.count};
}

}  // namespace tersum::gpu
