// Twins of none, fp16 and bf16 (compressors/cast.cpp).
#include <type_traits>

#include "compressors/wire_ids.hpp"
#include "cuda/codec.cuh"
#include "cuda/kernels.hpp"
#include "cuda/twin_methods.hpp"

namespace tersum::gpu {
namespace {

constexpr int kThreads = 256;
constexpr int kVectors = 2;  // of 4 elements, per thread
constexpr std::size_t kTile = kThreads * kVectors * 4;

struct AsFloat {
  using Element = float;
  static __device__ float narrow(float x) { return x; }
  static __device__ float widen(float x) { return x; }
};
struct AsHalf {
  using Element = std::uint16_t;
  static __device__ Element narrow(float x) { return half_of(x); }
  static __device__ float widen(Element x) { return float_of_half(x); }
};
struct AsBFloat {
  using Element = std::uint16_t;
  static __device__ Element narrow(float x) { return bfloat_of(x); }
  static __device__ float widen(Element x) { return float_of_bfloat(x); }
};

template <class Type>
struct alignas(4 * sizeof(typename Type::Element)) Four {
  typename Type::Element e[4];
};

template <class Type, Source kSource>
__global__ __launch_bounds__(kThreads) void cast_encode(Feed feed, std::byte* payload,
                                                        PayloadHeader header) {
  using Vector = Four<Type>;
  auto* body = reinterpret_cast<typename Type::Element*>(payload + compressors::kHeaderBytes);
  if (blockIdx.x == 0 && threadIdx.x == 0) write_header(payload, header);
  const std::size_t first = blockIdx.x * kTile + threadIdx.x * 4;
  float4 x[kVectors];
#pragma unroll
  for (int j = 0; j < kVectors; ++j) {
    x[j] = feed4<kSource, true>(feed, first + j * kThreads * 4);
  }
#pragma unroll
  for (int j = 0; j < kVectors; ++j) {
    const std::size_t i = first + j * kThreads * 4;
    if (i >= feed.count) break;
    const Vector v = {
        {Type::narrow(x[j].x), Type::narrow(x[j].y), Type::narrow(x[j].z), Type::narrow(x[j].w)}};
    if (i + 4 <= feed.count) {
      *reinterpret_cast<Vector*>(body + i) = v;
    } else {
      for (int c = 0; c < 4 && i + c < feed.count; ++c) body[i + c] = v.e[c];
    }
    if constexpr (kSource != Source::Gradient) {
      const float4 decoded = make_float4(Type::widen(v.e[0]), Type::widen(v.e[1]),
                                         Type::widen(v.e[2]), Type::widen(v.e[3]));
      store4(feed.residual_next, i, feed.count, feed.aligned, left_over4(x[j], decoded));
    }
  }
}

template <class Type, bool kAdd>
__global__ __launch_bounds__(kThreads) void cast_decode(const std::byte* payload,
                                                        PayloadHeader header, float* out,
                                                        float scale, bool aligned,
                                                        std::uint32_t* fault) {
  using Vector = Four<Type>;
  if (*fault != 0) return;
  if (!same_header(payload, header)) {
    report_fault(fault, DecodeStatus::kHeader);  // every block sees the same header and stops
    return;
  }
  const auto* body =
      reinterpret_cast<const typename Type::Element*>(payload + compressors::kHeaderBytes);
  const std::size_t first = blockIdx.x * kTile + threadIdx.x * 4;
#pragma unroll
  for (int j = 0; j < kVectors; ++j) {
    const std::size_t i = first + j * kThreads * 4;
    if (i >= header.count) break;
    Vector v = {};
    if (i + 4 <= header.count) {
      v = *reinterpret_cast<const Vector*>(body + i);
    } else {
      for (int c = 0; c < 4 && i + c < header.count; ++c) v.e[c] = body[i + c];
    }
    float4 old = make_float4(0, 0, 0, 0);
    if constexpr (kAdd) old = load4(out, i, header.count, aligned);
    store4(out, i, header.count, aligned,
           make_float4(applied<kAdd>(old.x, scale, Type::widen(v.e[0])),
                       applied<kAdd>(old.y, scale, Type::widen(v.e[1])),
                       applied<kAdd>(old.z, scale, Type::widen(v.e[2])),
                       applied<kAdd>(old.w, scale, Type::widen(v.e[3]))));
  }
}

template <class Type>
class CastTwin final : public Twin {
 public:
  explicit CastTwin(const TwinParameters& parameters)
      : Twin(parameters.spec, parameters.arrays, parameters.momentum),
        wire_id_(parameters.wire_id) {}

  std::size_t payload_bytes(std::size_t count) const override {
    return compressors::kHeaderBytes + count * sizeof(typename Type::Element);
  }
  std::size_t workspace_bytes(std::size_t) const override { return 0; }

 private:
  PayloadHeader header(std::size_t count) const {
    return make_header(wire_id_, 0, count, payload_bytes(count));
  }

  void encode(StreamView stream, const Input& input, const TwinContext&, std::byte* payload,
              std::byte*) const override {
    for_source(input, [&](auto source) {
      cast_encode<Type, source()><<<blocks_for(input.count, kTile), kThreads, 0, stream.get()>>>(
          make_feed(input), payload, header(input.count));
    });
    check_launch("cast_encode");
  }

  void decode(StreamView stream, Apply apply, const Output& output, const TwinContext&,
              std::byte*) const override {
    if (apply == Apply::Clear) return;
    const auto kernel = apply == Apply::Add ? cast_decode<Type, true> : cast_decode<Type, false>;
    kernel<<<blocks_for(output.count, kTile), kThreads, 0, stream.get()>>>(
        output.payload, header(output.count), output.values, output.scale,
        is_vector_aligned(output.values), output.fault);
    check_launch("cast_decode");
  }

  std::uint16_t wire_id_;
};

}  // namespace

std::unique_ptr<Twin> make_cast_twin(const TwinParameters& parameters, DType dtype) {
  switch (dtype) {
    case DType::Float16:
      return std::make_unique<CastTwin<AsHalf>>(parameters);
    case DType::BFloat16:
      return std::make_unique<CastTwin<AsBFloat>>(parameters);
    default:
      return std::make_unique<CastTwin<AsFloat>>(parameters);
  }
}

const void* cast_twin_kernel() {
  return reinterpret_cast<const void*>(cast_decode<AsFloat, true>);
}

}  // namespace tersum::gpu
