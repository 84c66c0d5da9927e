// randomk: k elements at random, the same on all ranks, so that only values travel.
//
// Operator   C(x)_i = f * x_i for i in S, else 0; S = k distinct indices, uniform, drawn from
// (seed,
//            step, key) only; k = max(1, round_half_up(ratio * count)) or the given k, at most
//            count; f = 1 (scale=none) or count / k in fp32 (scale=unbiased).
//            S = {p(0), ..., p(k-1)} for a keyed permutation p of [0, count): a Feistel network on
//            the smallest power of two (64 or more) that holds count, walked until it lands below
//            count (at most two steps on average, more below 33 elements). O(k) time, no memory,
//            each index by itself.
// Source     random-k: Stich et al., NeurIPS 2018 (arXiv 1809.07599); permutation: Mitchell et al.,
//            "Bandwidth-optimal random shuffling for GPUs" (arXiv 2106.06161).
// Deviation  non-finite elements outside S are not seen.
// Wire       byte 0    PayloadHeader (16 bytes), flags 0
//            byte 16   k values, fp32: element j is f * x at index p(j)
// Size       16 + 4 k; fixed by count and k
// Bias       scale=none: contractive in expectation, E||C(x) - x||^2 = (1 - k / count) ||x||^2.
//            scale=unbiased: unbiased, E||C(x) - x||^2 = (count / k - 1) ||x||^2
// Exchange   linear: bodies are summed in fp32
// Permutation: see index_set.hpp.
#include "compressors/index_set.hpp"
#include "compressors/methods.hpp"
#include "compressors/sparse_method.hpp"

namespace tersum::compressors {
namespace {

class RandomK final : public SparseMethod<RandomK> {
 public:
  RandomK(KeepRule rule, bool unbiased)
      : SparseMethod({.name = "randomk",
                      .wire_id = wire_id::kRandomK,
                      .wire_version = 1,
                      .bias = unbiased ? Bias::Unbiased : Bias::Contractive,
                      .aggregation = Aggregation::Linear,
                      .block_count = 0,
                      .fixed_size = true,
                      .randomised = true,
                      .sparse = true,
                      .payload_dtype = DType::Float32},
                     "randomk:" + to_string(rule) + ",scale=" + (unbiased ? "unbiased" : "none"),
                     rule),
        unbiased_(unbiased) {}

  std::size_t max_payload_bytes(std::size_t count) const override {
    return kHeaderBytes + rule_.kept(count) * sizeof(float);
  }

  std::size_t compress(std::span<const float> input, const SliceContext& context, CompressorState*,
                       std::span<std::byte> payload) const override {
    const std::size_t kept = rule_.kept(input.size());
    const auto body = begin_payload(traits(), 0, input.size(), kept * sizeof(float), payload);
    const IndexSet set(context, input.size());
    const float factor =
        unbiased_ && kept > 0
            ? static_cast<float>(static_cast<double>(input.size()) / static_cast<double>(kept))
            : 1.0f;
    for (std::size_t j = 0; j < kept; ++j) store(body.data(), j, factor * input[set.at(j)]);
    return kHeaderBytes + body.size();
  }

  class Reader {
   public:
    Reader(const IndexSet& set, std::size_t kept, const std::byte* values)
        : set_(set), kept_(kept), values_(values) {}
    std::size_t kept() const { return kept_; }
    float next(std::size_t& index) {
      index = set_.at(read_);
      return load<float>(values_, read_++);
    }

   private:
    IndexSet set_;
    std::size_t kept_;
    std::size_t read_ = 0;
    const std::byte* values_;
  };

  Reader open(std::span<const std::byte> payload, const SliceContext& context,
              std::size_t count) const {
    const std::size_t kept = rule_.kept(count);
    const auto body = checked_body(traits(), 0, count, kept * sizeof(float), payload);
    return Reader(IndexSet(context, count), kept, body.data());
  }

 private:
  bool unbiased_;
};

}  // namespace

std::shared_ptr<const Compressor> make_randomk(SpecParameters& parameters) {
  const KeepRule rule = get_keep_rule(parameters);
  const bool unbiased = parameters.get_choice("scale", "none", {"none", "unbiased"}) == "unbiased";
  return std::make_shared<RandomK>(rule, unbiased);
}

}  // namespace tersum::compressors
