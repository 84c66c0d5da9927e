// What qint and sign share on the device: the checks of a payload of blocks, and its decoder.
#pragma once

#include <bit>

#include "compressors/block_scales.hpp"
#include "cuda/codec.cuh"

namespace tersum::gpu {

/// Geometry of a payload of blocks (compressors/block_scales.hpp), as a kernel's argument.
struct BlockGeometry {
  std::size_t count;
  std::size_t scale_bytes;
  std::size_t code_bytes;
  std::uint32_t block;
  int block_shift;  // log2 of block, or -1
  int bits;
  float inverse;  // 1 / levels

  __device__ std::size_t block_of(std::size_t i) const {
    if (block_shift >= 0) return i >> block_shift;
    return count >> 32 == 0 ? static_cast<std::uint32_t>(i) / block : i / block;
  }
};

inline BlockGeometry make_geometry(const compressors::BlockLayout& layout, std::size_t count,
                                   int levels) {
  const auto block = static_cast<std::uint32_t>(layout.block);
  return {count,
          layout.scale_bytes(count),
          layout.code_bytes(count),
          block,
          std::has_single_bit(block) ? std::countr_zero(block) : -1,
          static_cast<int>(layout.bits),
          1.0f / static_cast<float>(levels)};
}

inline constexpr int kBlockThreads = 256;
inline constexpr int kChunk = 128;  // elements that a warp handles at once, 4 per lane
inline constexpr int kDecodeChunks = 4;
inline constexpr std::size_t kDecodeTile = kBlockThreads / 32 * kDecodeChunks * kChunk;

/// True for what the scale of a block can be: a magnitude, or the NaN of a block that is not
/// finite.
__device__ inline bool is_scale(std::uint32_t bits) {
  return bits >> 31 == 0 && bits != kInfinityBits;
}

/// Sets `fault` if header, a scale or the padding is wrong.
static __global__ __launch_bounds__(kBlockThreads) void check_blocks(const std::byte* payload,
                                                                     PayloadHeader header,
                                                                     BlockGeometry geometry,
                                                                     std::uint32_t* fault) {
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    if (!same_header(payload, header)) report_fault(fault, DecodeStatus::kHeader);
    const unsigned used = geometry.count % 8 * geometry.bits % 8;
    const std::byte* body = payload + compressors::kHeaderBytes;
    if (used != 0 &&
        static_cast<unsigned>(body[geometry.scale_bytes + geometry.code_bytes - 1]) >> used != 0) {
      report_fault(fault, DecodeStatus::kPadding);
    }
  }
  const auto* scales = reinterpret_cast<const std::uint32_t*>(payload + compressors::kHeaderBytes);
  const std::size_t stride = static_cast<std::size_t>(gridDim.x) * kBlockThreads;
  for (std::size_t b = blockIdx.x * static_cast<std::size_t>(kBlockThreads) + threadIdx.x;
       b < geometry.scale_bytes / 4; b += stride) {
    const std::uint32_t scale = scales[b];
    if (!is_scale(scale)) report_fault(fault, DecodeStatus::kScale);
  }
}

/// The element that the low bits of `code` stand for, in a block with `scale`.
template <bool kSign>
__device__ inline float decode_code(std::uint32_t code, int bits, float inverse, float scale) {
  if constexpr (kSign) return float_of(bits_of(scale) ^ code << 31);
  const std::uint32_t half = 1u << (bits - 1);
  const std::uint32_t level = ((code & (2 * half - 1)) ^ half) - half;
  const float value = __fsub_rn(float_of(kIntegerOffsetBits + level), kIntegerOffset);
  return keep_nan(__fmul_rn(__fmul_rn(value, inverse), scale), scale);
}

/// The codes of the 4 elements from `i` on: 4 * bits bits.
__device__ inline std::uint32_t load_codes(const std::byte* codes, const BlockGeometry& geometry,
                                           std::size_t i) {
  const std::size_t first_bit = i * geometry.bits;
  const std::size_t word = first_bit / 32;
  const unsigned shift = first_bit % 32;
  const std::uint32_t low = load_word(codes, word, geometry.code_bytes);
  if (shift + 4 * geometry.bits <= 32) return low >> shift;
  return __funnelshift_r(low, load_word(codes, word + 1, geometry.code_bytes), shift);
}

template <bool kSign, bool kAdd>
__global__ __launch_bounds__(kBlockThreads) void decode_blocks(const std::byte* payload,
                                                               BlockGeometry geometry, float* out,
                                                               float factor, bool aligned,
                                                               const std::uint32_t* fault) {
  const auto* scales = reinterpret_cast<const float*>(payload + compressors::kHeaderBytes);
  const std::byte* codes = payload + compressors::kHeaderBytes + geometry.scale_bytes;
  const int bits = kSign ? 1 : geometry.bits;
  const std::size_t first =
      blockIdx.x * kDecodeTile + threadIdx.x / 32 * (kDecodeChunks * kChunk) + threadIdx.x % 32 * 4;
  if (*fault != 0) return;
  std::uint32_t packed[kDecodeChunks];
  float scale[kDecodeChunks];
  float4 old[kDecodeChunks];
#pragma unroll
  for (int j = 0; j < kDecodeChunks; ++j) {
    const std::size_t i = first + j * kChunk;
    const bool inside = i < geometry.count;
    packed[j] = inside ? load_codes(codes, geometry, i) : 0;
    scale[j] = inside ? __ldg(scales + geometry.block_of(i)) : 0.0f;
    if constexpr (kAdd) old[j] = load4(out, i, geometry.count, aligned);
  }
#pragma unroll
  for (int j = 0; j < kDecodeChunks; ++j) {
    const std::size_t i = first + j * kChunk;
    const auto element = [&](int c, float before) {
      const float x = decode_code<kSign>(packed[j] >> (c * bits), bits, geometry.inverse, scale[j]);
      return applied<kAdd>(before, factor, x);
    };
    if constexpr (!kAdd) old[j] = make_float4(0, 0, 0, 0);
    store4(out, i, geometry.count, aligned,
           make_float4(element(0, old[j].x), element(1, old[j].y), element(2, old[j].z),
                       element(3, old[j].w)));
  }
}

/// Checks a payload, then applies it unless it is bad.
template <bool kSign>
void launch_decode_blocks(StreamView stream, const std::byte* payload, const PayloadHeader& header,
                          const BlockGeometry& geometry, bool add, float* values, float scale,
                          std::uint32_t* fault) {
  const std::size_t blocks = geometry.scale_bytes / sizeof(float);
  check_blocks<<<std::min(blocks_for(blocks, kBlockThreads), 1024u), kBlockThreads, 0,
                 stream.get()>>>(payload, header, geometry, fault);
  check_launch("check_blocks");
  if (geometry.count == 0) return;
  const auto kernel = add ? decode_blocks<kSign, true> : decode_blocks<kSign, false>;
  kernel<<<blocks_for(geometry.count, kDecodeTile), kBlockThreads, 0, stream.get()>>>(
      payload, geometry, values, scale, is_vector_aligned(values), fault);
  check_launch("decode_blocks");
}

}  // namespace tersum::gpu
