// Twin of qint (compressors/qint.cpp).
//
// A warp takes chunks of 128 elements, 4 consecutive ones per lane. Where a block (or several) fits
// a few chunks its elements stay in registers between finding the scale and rounding, so that
// memory is passed over once. Other blocks are read twice by the warp that owns them.
#include "compressors/wire_ids.hpp"
#include "cuda/kernels.hpp"
#include "cuda/qint_codec.cuh"
#include "cuda/twin_methods.hpp"

namespace tersum::gpu {
namespace {

struct Quantiser {
  Draws draws;
  std::uint64_t offset;  // of element 0 inside its gradient
  Levels levels;
};

/// Stores the bits of 4 elements per lane, 4 * bits each, as the words from element `first` on.
__device__ void store_words(std::byte* codes, const BlockGeometry& geometry, std::size_t first,
                            std::size_t end, std::uint32_t packed) {
  const int width = 4 * geometry.bits;
  const int lane = threadIdx.x % 32;
  const int source = 32 * lane / width;
  int position = source * width - 32 * lane;  // of that lane's bits in this lane's word
  std::uint32_t word = 0;
#pragma unroll
  for (int t = 0; t < 4; ++t) {
    const std::uint32_t part = __shfl_sync(kAllLanes, packed, source + t & 31);
    if (source + t < 32 && position < 32) {
      word |= position < 0 ? part >> -position : part << position;
    }
    position += width;
  }
  const std::size_t bits = (end - first) * geometry.bits;
  if (lane < width && lane * 32u < bits) {
    store_word(codes, first / 32 * geometry.bits + lane, geometry.code_bytes, word);
  }
}

/// Where a lane's bits of the chunk from element `first` on begin, if those are whole bytes.
__device__ std::byte* place_of(std::byte* codes, const BlockGeometry& geometry, std::size_t first) {
  return codes + first / 8 * geometry.bits + threadIdx.x % 32 * geometry.bits / 2;
}

/// The same as store_words() for a whole chunk; even numbers of bits but 6 need no exchange.
__device__ void store_chunk(std::byte* codes, const BlockGeometry& geometry, std::size_t first,
                            std::uint32_t packed, std::byte* place) {
  if (geometry.bits == 4) {
    *reinterpret_cast<std::uint16_t*>(place) = static_cast<std::uint16_t>(packed);
  } else if (geometry.bits == 8) {
    *reinterpret_cast<std::uint32_t*>(place) = packed;
  } else if (geometry.bits == 2) {
    *place = static_cast<std::byte>(packed);
  } else {
    store_words(codes, geometry, first, first + kChunk, packed);
  }
}

/// The two words with the draws of elements e .. e + 3.
__device__ __noinline__ uint2 draws_at(const compressors::DrawStream& stream, std::uint64_t e) {
  if (e % 4 == 0) {
    const uint4 group = draw_group(stream, e / 8);
    return e % 8 == 0 ? make_uint2(group.x, group.y) : make_uint2(group.z, group.w);
  }
  std::uint32_t draw[4];
  for (int c = 0; c < 4; ++c) {
    const uint4 group = draw_group(stream, (e + c) / 8);
    const unsigned word = (e + c) % 8 / 2;
    const std::uint32_t both =
        word < 2 ? (word == 0 ? group.x : group.y) : (word == 2 ? group.z : group.w);
    draw[c] = (e + c) % 2 == 0 ? both & 0xffffu : both >> 16;
  }
  return make_uint2(draw[0] | draw[1] << 16, draw[2] | draw[3] << 16);
}

/// The draws of a warp's chunks; `element` is a multiple of 8 for even lanes.
template <int kChunks>
__device__ void draw_chunks(const compressors::DrawStream& stream, std::uint64_t element,
                            uint2 (&draws)[kChunks]) {
  if constexpr (kChunks == 1) {
    const uint4 group = draw_group(stream, element / 8);
    draws[0] = element % 8 == 0 ? make_uint2(group.x, group.y) : make_uint2(group.z, group.w);
  }
#pragma unroll
  for (int j = 0; j + 1 < kChunks; j += 2) {
    draws_of_pair(stream, element + j * kChunk, draws[j], draws[j + 1]);
  }
}

/// kChunks chunks from element `start` on. kFull: all elements are there and aligned to 16 bytes.
template <int kChunks, Source kSource, bool kStochastic, bool kFull>
__device__ void encode_chunks(const Feed& feed, const BlockGeometry& geometry,
                              const Quantiser& quantiser, std::size_t start, std::byte* body) {
  auto* scales = reinterpret_cast<std::uint32_t*>(body);
  std::byte* codes = body + geometry.scale_bytes;
  const int lane = threadIdx.x % 32;
  const std::size_t first = start + lane * 4;
  float4 x[kChunks];
  std::uint32_t magnitude = 0;
#pragma unroll
  for (int j = 0; j < kChunks; ++j) {
    x[j] = feed4<kSource, true, Nan::Any, kFull>(feed, first + j * kChunk);
  }
#pragma unroll
  for (int j = 0; j < kChunks; ++j) magnitude = max(magnitude, magnitude4(x[j]));
  const int lanes = kChunks > 1 ? 32 : static_cast<int>(geometry.block) / 4;
  for (int o = lanes / 2; o > 0; o /= 2) {
    magnitude = max(magnitude, __shfl_xor_sync(kAllLanes, magnitude, o));
  }
  if (lane % lanes == 0 && first < feed.count) {
    scales[geometry.block_of(first)] = scale_bits(magnitude);
  }
  uint2 draws[kChunks] = {};
  if constexpr (kStochastic) {
    draw_chunks<kChunks>(quantiser.draws.stream(), quantiser.offset + first, draws);
  }
  const Divider divide(magnitude);
  std::byte* const place = place_of(codes, geometry, start);
#pragma unroll
  for (int j = 0; j < kChunks; ++j) {
    const std::size_t chunk = start + j * kChunk;
    if (!kFull && chunk >= feed.count) break;
    const float4 level = quantise4<kStochastic>(x[j], divide, quantiser.levels.count, draws[j]);
    const std::uint32_t packed = pack4(level, quantiser.levels.bits);
    if (kFull || chunk + kChunk <= feed.count) {
      store_chunk(codes, geometry, chunk, packed, place + j * (kChunk / 8) * geometry.bits);
    } else {
      store_words(codes, geometry, chunk, feed.count, packed);
    }
    if constexpr (kSource != Source::Gradient) {
      const float4 left = left_of_levels4(x[j], level, divide, quantiser.levels);
      if constexpr (kFull) {
        __stcs(reinterpret_cast<float4*>(feed.residual_next + first + j * kChunk), left);
      } else {
        store4(feed.residual_next, first + j * kChunk, feed.count, feed.aligned, left);
      }
    }
  }
}

/// Blocks of 128 * kChunks elements; with kChunks = 1 of 32 and 64, too. One warp per kChunks.
template <int kChunks, Source kSource, bool kStochastic>
__global__ __launch_bounds__(kBlockThreads) void encode_in_registers(Feed feed,
                                                                     BlockGeometry geometry,
                                                                     Quantiser quantiser,
                                                                     std::byte* payload,
                                                                     PayloadHeader header) {
  if (blockIdx.x == 0 && threadIdx.x == 0) write_header(payload, header);
  std::byte* body = payload + compressors::kHeaderBytes;
  const std::size_t warp = blockIdx.x * (kBlockThreads / 32ull) + threadIdx.x / 32;
  const std::size_t start = warp * (kChunks * kChunk);
  if (start >= feed.count) return;
  if (feed.aligned && start + kChunks * kChunk <= feed.count) {
    encode_chunks<kChunks, kSource, kStochastic, true>(feed, geometry, quantiser, start, body);
  } else {
    encode_chunks<kChunks, kSource, kStochastic, false>(feed, geometry, quantiser, start, body);
  }
}

/// Blocks of any size: one warp per block, which reads it twice.
template <Source kSource, bool kStochastic>
__global__ __launch_bounds__(kBlockThreads) void encode_twice(Feed feed, BlockGeometry geometry,
                                                              Quantiser quantiser,
                                                              std::byte* payload,
                                                              PayloadHeader header) {
  if (blockIdx.x == 0 && threadIdx.x == 0) write_header(payload, header);
  auto* scales = reinterpret_cast<std::uint32_t*>(payload + compressors::kHeaderBytes);
  std::byte* codes = payload + compressors::kHeaderBytes + geometry.scale_bytes;
  const std::size_t block = blockIdx.x * (kBlockThreads / 32ull) + threadIdx.x / 32;
  const std::size_t start = block * geometry.block;
  if (start >= feed.count) return;
  const std::size_t end = min(start + geometry.block, feed.count);
  feed.count = end;  // what lies beyond the block is another warp's
  const std::size_t lane_first = threadIdx.x % 32 * 4;
  std::uint32_t magnitude = 0;
#pragma unroll 4
  for (std::size_t chunk = start; chunk < end; chunk += kChunk) {
    magnitude =
        max(magnitude, magnitude4(feed4<kSource, false, Nan::Any>(feed, chunk + lane_first)));
  }
  magnitude = __reduce_max_sync(kAllLanes, magnitude);
  if (lane_first == 0) scales[block] = scale_bits(magnitude);
  const Divider divide(magnitude);
  compressors::DrawStream stream{};
  if constexpr (kStochastic) stream = quantiser.draws.stream();
#pragma unroll 2
  for (std::size_t chunk = start; chunk < end; chunk += kChunk) {
    const std::size_t i = chunk + lane_first;
    const float4 x = feed4<kSource, true, Nan::Any>(feed, i);
    uint2 draws = make_uint2(0, 0);
    if constexpr (kStochastic) draws = draws_at(stream, quantiser.offset + i);
    const float4 level = quantise4<kStochastic>(x, divide, quantiser.levels.count, draws);
    const std::uint32_t packed = pack4(level, quantiser.levels.bits);
    store_words(codes, geometry, chunk, end, packed);
    if constexpr (kSource != Source::Gradient) {
      store4(feed.residual_next, i, end, feed.aligned,
             left_of_levels4(x, level, divide, quantiser.levels));
    }
  }
}

using EncodeKernel = void (*)(Feed, BlockGeometry, Quantiser, std::byte*, PayloadHeader);

/// The kernel for a block size, and the elements that a warp of it takes. Slices that start inside
/// a group of 8 draws are rare, and left to the general kernel.
template <Source kSource, bool kStochastic>
EncodeKernel choose_kernel(std::size_t block, std::uint64_t offset, std::size_t& warp_elements) {
  warp_elements = std::max<std::size_t>(block, kChunk);
  switch (kStochastic && offset % 8 != 0 ? 0 : block) {
    case 32:
    case 64:
    case 128:
      return encode_in_registers<1, kSource, kStochastic>;
    case 256:
      return encode_in_registers<2, kSource, kStochastic>;
    case 512:
      return encode_in_registers<4, kSource, kStochastic>;
    case 1024:
      return encode_in_registers<8, kSource, kStochastic>;
    default:
      warp_elements = block;
      return encode_twice<kSource, kStochastic>;
  }
}

class QIntTwin final : public Twin {
 public:
  explicit QIntTwin(const TwinParameters& parameters)
      : Twin(parameters.spec, parameters.arrays, parameters.momentum),
        layout_{parameters.block, static_cast<std::size_t>(parameters.bits)},
        levels_((1 << (parameters.bits - 1)) - 1),
        stochastic_(parameters.stochastic) {}

  std::size_t payload_bytes(std::size_t count) const override {
    return compressors::kHeaderBytes + layout_.body_bytes(count);
  }
  std::size_t workspace_bytes(std::size_t) const override { return 0; }

 private:
  PayloadHeader header(std::size_t count) const {
    return make_header(compressors::wire_id::kQInt, static_cast<std::uint8_t>(layout_.bits), count,
                       payload_bytes(count));
  }

  void encode(StreamView stream, const Input& input, const TwinContext& context, std::byte* payload,
              std::byte*) const override {
    const auto levels = static_cast<float>(levels_);
    const Quantiser quantiser{Draws(context, compressors::Purpose::Rounding),
                              context.offset,
                              {static_cast<int>(layout_.bits), levels, 1.0f / levels}};
    for_source(input, [&](auto source) {
      std::size_t warp_elements = 0;
      const EncodeKernel kernel =
          stochastic_
              ? choose_kernel<source(), true>(layout_.block, context.offset, warp_elements)
              : choose_kernel<source(), false>(layout_.block, context.offset, warp_elements);
      kernel<<<blocks_for(input.count, warp_elements * (kBlockThreads / 32)), kBlockThreads, 0,
               stream.get()>>>(make_feed(input), make_geometry(layout_, input.count, levels_),
                               quantiser, payload, header(input.count));
    });
    check_launch("qint encode");
  }

  void decode(StreamView stream, Apply apply, const Output& output, const TwinContext&,
              std::byte*) const override {
    if (apply == Apply::Clear) return;
    launch_decode_blocks<false>(stream, output.payload, header(output.count),
                                make_geometry(layout_, output.count, levels_), apply == Apply::Add,
                                output.values, output.scale, output.fault);
  }

  compressors::BlockLayout layout_;
  int levels_;
  bool stochastic_;
};

}  // namespace

std::unique_ptr<Twin> make_qint_twin(const TwinParameters& parameters) {
  return std::make_unique<QIntTwin>(parameters);
}

const void* qint_twin_kernel() {
  return reinterpret_cast<const void*>(encode_twice<Source::Gradient, false>);
}

}  // namespace tersum::gpu
