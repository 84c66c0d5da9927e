// Arithmetic of qint on the device (compressors/qint.cpp): draws, division, rounding.
#pragma once

#include "cuda/block_codec.cuh"

namespace tersum::gpu {

/// The draws of two chunks that start at elements e and e + 128, multiples of 8 for even lanes:
/// lanes in pairs share groups, so each computes one.
__device__ inline void draws_of_pair(const compressors::DrawStream& stream, std::uint64_t e,
                                     uint2& a, uint2& b) {
  const bool odd = threadIdx.x % 2 != 0;
  const uint4 group = draw_group(stream, e / 8 + (odd ? kChunk / 8 : 0));
  const std::uint32_t first = __shfl_xor_sync(kAllLanes, odd ? group.x : group.z, 1);
  const std::uint32_t second = __shfl_xor_sync(kAllLanes, odd ? group.y : group.w, 1);
  a = odd ? make_uint2(first, second) : make_uint2(group.x, group.y);
  b = odd ? make_uint2(group.z, group.w) : make_uint2(first, second);
}

/// (draw + 0.5) / 65536 of the low and of the high half of a word, exactly.
__device__ inline float threshold_low(std::uint32_t draws) {
  return __fsub_rn(float_of((draws << 7 & 0x7fff80u) | 0x3f800000u), 1.0f - 0x1p-17f);
}
__device__ inline float threshold_high(std::uint32_t draws) {
  return __fsub_rn(float_of((draws >> 9 & 0x7fff80u) | 0x3f800000u), 1.0f - 0x1p-17f);
}

/// True for scales with which nothing that matters under- or overflows: 2^-40 to 2^126.
__device__ inline bool is_in_plain_range(std::uint32_t scale_bits) {
  return scale_bits >= 0x2b800000u && scale_bits < 0x7e800000u;
}

/// x / scale, rounded to nearest even, for every x of a block: two steps of refinement with the
/// correctly rounded reciprocal, exact by Markstein's theorem while nothing under- or overflows.
/// With a scale in the plain range that can only happen to quotients so small that their code is 0
/// whatever they are.
__device__ inline float refined_quotient(float x, float scale, float reciprocal) {
  float q = __fmul_rn(x, reciprocal);
  q = __fmaf_rn(__fmaf_rn(-scale, q, x), reciprocal, q);
  return __fmaf_rn(__fmaf_rn(-scale, q, x), reciprocal, q);
}

/// For blocks of any scale.
struct Divider {
  std::uint32_t magnitude;  // the scale's bits
  float scale;
  float reciprocal;
  bool fast;

  __device__ explicit Divider(std::uint32_t scale_bits) {
    magnitude = scale_bits;
    scale = float_of(scale_bits);
    fast = is_in_plain_range(scale_bits);
    reciprocal = __frcp_rn(fast ? scale : 1.0f);
  }
  __device__ float operator()(float x) const { return refined_quotient(x, scale, reciprocal); }
};

/// For blocks with a scale in the plain range, and blocks of zeros.
struct PlainDivider {
  float scale;
  float reciprocal;

  __device__ explicit PlainDivider(std::uint32_t scale_bits) : scale(float_of(scale_bits)) {
    // The device's reciprocal is off by one unit at most; one step makes it the nearest.
    float near;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(near) : "f"(scale));
    reciprocal = __fmaf_rn(__fmaf_rn(-scale, near, 1.0f), near, near);
    if (scale == 0.0f) reciprocal = 0.0f;
  }
  __device__ float operator()(float x) const { return refined_quotient(x, scale, reciprocal); }
};

/// The level of an element plus kIntegerOffset.
template <bool kStochastic>
__device__ inline float level_of(float quotient, float levels, float threshold) {
  const float y = __fmul_rn(quotient, levels);
  if constexpr (!kStochastic) return __fadd_rn(y, kIntegerOffset);
  return __fadd_rd(__fadd_rn(y, threshold), kIntegerOffset);
}

/// What the number of bits makes of a scale.
struct Levels {
  int bits;
  float count;    // 2^(bits - 1) - 1
  float inverse;  // 1 / count
};

/// Levels of 4 quotients, plus kIntegerOffset.
template <bool kStochastic>
__device__ inline float4 round4(float4 q, float levels, uint2 draws) {
  return make_float4(level_of<kStochastic>(q.x, levels, threshold_low(draws.x)),
                     level_of<kStochastic>(q.y, levels, threshold_high(draws.x)),
                     level_of<kStochastic>(q.z, levels, threshold_low(draws.y)),
                     level_of<kStochastic>(q.w, levels, threshold_high(draws.y)));
}

/// Levels of 4 elements, plus kIntegerOffset.
template <bool kStochastic>
__device__ inline float4 quantise4(float4 x, const Divider& divide, float levels, uint2 draws) {
  const std::uint32_t magnitude = divide.magnitude;
  if (divide.fast) {
    x = make_float4(divide(x.x), divide(x.y), divide(x.z), divide(x.w));
  } else if (magnitude == 0 || magnitude >= kInfinityBits) {
    return make_float4(kIntegerOffset, kIntegerOffset, kIntegerOffset, kIntegerOffset);
  } else {
    const float scale = float_of(magnitude);
    x = make_float4(__fdiv_rn(x.x, scale), __fdiv_rn(x.y, scale), __fdiv_rn(x.z, scale),
                    __fdiv_rn(x.w, scale));
  }
  return round4<kStochastic>(x, levels, draws);
}

template <bool kStochastic>
__device__ inline float4 quantise4(float4 x, const PlainDivider& divide, float levels,
                                   uint2 draws) {
  return round4<kStochastic>(make_float4(divide(x.x), divide(x.y), divide(x.z), divide(x.w)),
                             levels, draws);
}

/// The codes of 4 levels.
__device__ inline std::uint32_t pack4(float4 level, int bits) {
  const std::uint32_t mask = (1u << bits) - 1;
  return (bits_of(level.x) & mask) | (bits_of(level.y) & mask) << bits |
         (bits_of(level.z) & mask) << 2 * bits | (bits_of(level.w) & mask) << 3 * bits;
}

/// The residual of 4 elements, if nothing overflows.
template <class Division>
__device__ inline float4 rest_of_levels4(float4 x, float4 level, const Division& divide,
                                         const Levels& levels) {
  const auto left = [&](float element, float of) {
    const float value = __fmul_rn(__fsub_rn(of, kIntegerOffset), levels.inverse);
    return __fsub_rn(element, __fmul_rn(value, divide.scale));
  };
  return make_float4(left(x.x, level.x), left(x.y, level.y), left(x.z, level.z),
                     left(x.w, level.w));
}

__device__ inline float4 left_of_levels4(float4 x, float4 level, const PlainDivider& divide,
                                         const Levels& levels) {
  return rest_of_levels4(x, level, divide, levels);
}

__device__ inline float4 left_of_levels4(float4 x, float4 level, const Divider& divide,
                                         const Levels& levels) {
  const float4 rest = rest_of_levels4(x, level, divide, levels);
  if (divide.magnitude < 0x7e800000u) return rest;
  // Only now can a product or a difference overflow.
  return make_float4(finite_or_zero(rest.x), finite_or_zero(rest.y), finite_or_zero(rest.z),
                     finite_or_zero(rest.w));
}

/// Bits of the largest magnitude, or more than those of any number if there is a NaN.
__device__ inline std::uint32_t magnitude4(float4 x) {
  return max(max(magnitude_of(x.x), magnitude_of(x.y)), max(magnitude_of(x.z), magnitude_of(x.w)));
}

/// The scale of a block of this magnitude.
__device__ inline std::uint32_t scale_bits(std::uint32_t magnitude) {
  return magnitude >= kInfinityBits ? kPoisonBits : magnitude;
}

}  // namespace tersum::gpu
