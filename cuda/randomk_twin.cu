// Twin of randomk (compressors/randomk.cpp).
#include "compressors/index_set.hpp"
#include "compressors/wire_ids.hpp"
#include "cuda/codec.cuh"
#include "cuda/kernels.hpp"
#include "cuda/twin_methods.hpp"

namespace tersum::gpu {
namespace {

using compressors::IndexSet;

constexpr int kThreads = 256;

/// The index set of a slice, in a step that may be on the device.
class Indices {
 public:
  Indices(const TwinContext& context, std::size_t count)
      : set_(context, count),
        draws_(context, compressors::Purpose::IndexSet),
        is_known_(context.device_step == nullptr) {}

  __device__ IndexSet set() const {
    IndexSet set = set_;
    if (is_known_) return set;
    const compressors::DrawStream stream = draws_.stream();
    const uint4 a = draw_group(stream, 0), b = draw_group(stream, 1);
    const std::uint32_t keys[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
    set.set_keys(keys);
    return set;
  }

 private:
  IndexSet set_;
  Draws draws_;
  bool is_known_;
};

/// With feedback: next residual and velocity as if nothing were sent.
template <Source kSource>
__global__ __launch_bounds__(kThreads) void keep_all(Feed feed) {
  const std::size_t i = (blockIdx.x * static_cast<std::size_t>(kThreads) + threadIdx.x) * 4;
  const float4 x = feed4<kSource, true>(feed, i);
  store4(feed.residual_next, i, feed.count, feed.aligned,
         make_float4(finite_or_zero(x.x), finite_or_zero(x.y), finite_or_zero(x.z),
                     finite_or_zero(x.w)));
}

template <Source kSource>
__global__ __launch_bounds__(kThreads) void send_values(Feed feed, Indices indices,
                                                        std::size_t kept, float factor,
                                                        std::byte* payload, PayloadHeader header) {
  const std::size_t j = blockIdx.x * static_cast<std::size_t>(kThreads) + threadIdx.x;
  if (j == 0) write_header(payload, header);
  if (j >= kept) return;
  const std::size_t i = indices.set().at(j);
  const float x = feed1<kSource, false>(feed, i);
  auto* values = reinterpret_cast<float*>(payload + compressors::kHeaderBytes);
  values[j] = keep_nan(__fmul_rn(factor, x), x);
  if constexpr (kSource != Source::Gradient) feed.residual_next[i] = 0.0f;
  if constexpr (kSource == Source::Momentum) feed.velocity_next[i] = 0.0f;
}

/// Zeros, unless the payload is bad.
__global__ __launch_bounds__(kThreads) void fill_zero(const std::byte* payload,
                                                      PayloadHeader header, float* out,
                                                      bool aligned, const std::uint32_t* fault) {
  if (*fault != 0 || !same_header(payload, header)) return;
  const std::size_t i = (blockIdx.x * static_cast<std::size_t>(kThreads) + threadIdx.x) * 4;
  store4(out, i, header.count, aligned, make_float4(0, 0, 0, 0));
}

template <bool kAdd, bool kClear>
__global__ __launch_bounds__(kThreads) void receive_values(const std::byte* payload,
                                                           PayloadHeader header, Indices indices,
                                                           std::size_t kept, float* out,
                                                           float scale, std::uint32_t* fault) {
  if (*fault != 0) return;
  if (!same_header(payload, header)) {
    report_fault(fault, DecodeStatus::kHeader);
    return;
  }
  const std::size_t j = blockIdx.x * static_cast<std::size_t>(kThreads) + threadIdx.x;
  if (j >= kept) return;
  const std::size_t i = indices.set().at(j);
  const auto* values = reinterpret_cast<const float*>(payload + compressors::kHeaderBytes);
  out[i] = kClear ? 0.0f : applied<kAdd>(kAdd ? out[i] : 0.0f, scale, values[j]);
}

class RandomKTwin final : public Twin {
 public:
  explicit RandomKTwin(const TwinParameters& parameters)
      : Twin(parameters.spec, parameters.arrays, parameters.momentum),
        rule_(parameters.keep),
        unbiased_(parameters.unbiased) {}

  std::size_t payload_bytes(std::size_t count) const override {
    return compressors::kHeaderBytes + rule_.kept(count) * sizeof(float);
  }
  std::size_t workspace_bytes(std::size_t) const override { return 0; }

 private:
  PayloadHeader header(std::size_t count) const {
    return make_header(compressors::wire_id::kRandomK, 0, count, payload_bytes(count));
  }

  void encode(StreamView stream, const Input& input, const TwinContext& context, std::byte* payload,
              std::byte*) const override {
    const std::size_t kept = rule_.kept(input.count);
    const float factor =
        unbiased_ && kept > 0
            ? static_cast<float>(static_cast<double>(input.count) / static_cast<double>(kept))
            : 1.0f;
    for_source(input, [&](auto source) {
      const Feed feed = make_feed(input);
      if constexpr (source() != Source::Gradient) {
        keep_all<source()>
            <<<blocks_for(input.count, kThreads * 4), kThreads, 0, stream.get()>>>(feed);
        check_launch("randomk keep_all");
      }
      send_values<source()><<<blocks_for(kept, kThreads), kThreads, 0, stream.get()>>>(
          feed, Indices(context, input.count), kept, factor, payload, header(input.count));
    });
    check_launch("randomk send_values");
  }

  void decode(StreamView stream, Apply apply, const Output& output, const TwinContext& context,
              std::byte*) const override {
    const std::size_t kept = rule_.kept(output.count);
    if (apply == Apply::Set) {
      fill_zero<<<blocks_for(output.count, kThreads * 4), kThreads, 0, stream.get()>>>(
          output.payload, header(output.count), output.values, is_vector_aligned(output.values),
          output.fault);
      check_launch("randomk fill_zero");
    }
    const auto kernel = apply == Apply::Set   ? receive_values<false, false>
                        : apply == Apply::Add ? receive_values<true, false>
                                              : receive_values<false, true>;
    kernel<<<blocks_for(kept, kThreads), kThreads, 0, stream.get()>>>(
        output.payload, header(output.count), Indices(context, output.count), kept, output.values,
        output.scale, output.fault);
    check_launch("randomk receive_values");
  }

  compressors::KeepRule rule_;
  bool unbiased_;
};

}  // namespace

std::unique_ptr<Twin> make_randomk_twin(const TwinParameters& parameters) {
  return std::make_unique<RandomKTwin>(parameters);
}

const void* randomk_twin_kernel() {
  return reinterpret_cast<const void*>(fill_zero);
}

}  // namespace tersum::gpu
