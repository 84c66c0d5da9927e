// Twin of sign (compressors/sign.cpp).
//
// Lane l of a warp has the elements l, l + 32, ... of a block, as the definition of the sum wants
// it; a ballot over their sign bits is then a word of the payload. Blocks of up to 1024 elements in
// powers of two stay in registers, others are read twice.
#include "compressors/wire_ids.hpp"
#include "cuda/kernels.hpp"
#include "cuda/sign_codec.cuh"
#include "cuda/twin_methods.hpp"

namespace tersum::gpu {
namespace {

template <Source kSource>
__device__ void store_residual(const Feed& feed, std::size_t i, float x, float mean) {
  if constexpr (kSource != Source::Gradient) {
    // Finite unless the block is poisoned: mean and element have the same sign.
    const float left = is_poison(mean) ? 0.0f : __fsub_rn(x, signed_mean(mean, x));
    if (i < feed.count) __stcs(feed.residual_next + i, left);
  }
}

/// Blocks of 32 * kWords elements, one warp each.
template <int kWords, Source kSource>
__global__ __launch_bounds__(kBlockThreads) void encode_in_registers(Feed feed,
                                                                     BlockGeometry geometry,
                                                                     std::byte* payload,
                                                                     PayloadHeader header) {
  if (blockIdx.x == 0 && threadIdx.x == 0) write_header(payload, header);
  auto* scales = reinterpret_cast<float*>(payload + compressors::kHeaderBytes);
  std::byte* codes = payload + compressors::kHeaderBytes + geometry.scale_bytes;
  const int lane = threadIdx.x % 32;
  const std::size_t block = blockIdx.x * (kBlockThreads / 32ull) + threadIdx.x / 32;
  const std::size_t start = block * (kWords * 32);
  if (start >= feed.count) return;
  float x[kWords];
#pragma unroll
  for (int j = 0; j < kWords; ++j)
    x[j] = feed1<kSource, true, Nan::Any>(feed, start + j * 32 + lane);
  float sum = 0;
#pragma unroll
  for (int j = 0; j < kWords; ++j) sum = __fadd_rn(sum, fabsf(x[j]));
  const float mean = mean_of(sum, min(feed.count - start, std::size_t{kWords * 32}));
  if (lane == 0) scales[block] = mean;
  std::uint32_t word = 0;
#pragma unroll
  for (int j = 0; j < kWords; ++j) {
    const std::uint32_t signs = __ballot_sync(kAllLanes, bits_of(x[j]) >> 31);
    if (lane == j) word = signs;
    store_residual<kSource>(feed, start + j * 32 + lane, x[j], mean);
  }
  if (lane < kWords && start + lane * 32 < feed.count) {
    store_word(codes, start / 32 + lane, geometry.code_bytes, is_poison(mean) ? 0 : word);
  }
}

/// Blocks of any size: one warp per block, which reads it twice.
template <Source kSource>
__global__ __launch_bounds__(kBlockThreads) void encode_twice(Feed feed, BlockGeometry geometry,
                                                              std::byte* payload,
                                                              PayloadHeader header) {
  if (blockIdx.x == 0 && threadIdx.x == 0) write_header(payload, header);
  auto* scales = reinterpret_cast<float*>(payload + compressors::kHeaderBytes);
  std::byte* codes = payload + compressors::kHeaderBytes + geometry.scale_bytes;
  const int lane = threadIdx.x % 32;
  const std::size_t block = blockIdx.x * (kBlockThreads / 32ull) + threadIdx.x / 32;
  const std::size_t start = block * geometry.block;
  if (start >= feed.count) return;
  const std::size_t end = min(start + geometry.block, feed.count);
  feed.count = end;
  float sum = 0;
#pragma unroll 8
  for (std::size_t i = start; i < end; i += 32) {
    sum = __fadd_rn(sum, fabsf(feed1<kSource, false, Nan::Any>(feed, i + lane)));
  }
  const float mean = mean_of(sum, end - start);
  if (lane == 0) scales[block] = mean;
#pragma unroll 4
  for (std::size_t i = start; i < end; i += 32) {
    const float x = feed1<kSource, true, Nan::Any>(feed, i + lane);
    const std::uint32_t signs = __ballot_sync(kAllLanes, bits_of(x) >> 31);
    store_residual<kSource>(feed, i + lane, x, mean);
    if (lane == 0) {
      store_word(codes, i / 32, geometry.code_bytes, is_poison(mean) ? 0 : signs);
    }
  }
}

using EncodeKernel = void (*)(Feed, BlockGeometry, std::byte*, PayloadHeader);

template <Source kSource>
EncodeKernel choose_kernel(std::size_t block) {
  switch (block) {
    case 32:
      return encode_in_registers<1, kSource>;
    case 64:
      return encode_in_registers<2, kSource>;
    case 128:
      return encode_in_registers<4, kSource>;
    case 256:
      return encode_in_registers<8, kSource>;
    case 512:
      return encode_in_registers<16, kSource>;
    case 1024:
      return encode_in_registers<32, kSource>;
    default:
      return encode_twice<kSource>;
  }
}

class SignTwin final : public Twin {
 public:
  explicit SignTwin(const TwinParameters& parameters)
      : Twin(parameters.spec, parameters.arrays, parameters.momentum),
        layout_{parameters.block, 1} {}

  std::size_t payload_bytes(std::size_t count) const override {
    return compressors::kHeaderBytes + layout_.body_bytes(count);
  }
  std::size_t workspace_bytes(std::size_t) const override { return 0; }

 private:
  PayloadHeader header(std::size_t count) const {
    return make_header(compressors::wire_id::kSign, 0, count, payload_bytes(count));
  }

  void encode(StreamView stream, const Input& input, const TwinContext&, std::byte* payload,
              std::byte*) const override {
    for_source(input, [&](auto source) {
      const EncodeKernel kernel = choose_kernel<source()>(layout_.block);
      kernel<<<blocks_for(input.count, layout_.block * (kBlockThreads / 32)), kBlockThreads, 0,
               stream.get()>>>(make_feed(input), make_geometry(layout_, input.count, 1), payload,
                               header(input.count));
    });
    check_launch("sign encode");
  }

  void decode(StreamView stream, Apply apply, const Output& output, const TwinContext&,
              std::byte*) const override {
    if (apply == Apply::Clear) return;
    launch_decode_blocks<true>(stream, output.payload, header(output.count),
                               make_geometry(layout_, output.count, 1), apply == Apply::Add,
                               output.values, output.scale, output.fault);
  }

  compressors::BlockLayout layout_;
};

}  // namespace

std::unique_ptr<Twin> make_sign_twin(const TwinParameters& parameters) {
  return std::make_unique<SignTwin>(parameters);
}

const void* sign_twin_kernel() {
  return reinterpret_cast<const void*>(encode_twice<Source::Gradient>);
}

}  // namespace tersum::gpu
