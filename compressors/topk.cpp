// topk: the k elements of largest magnitude, exactly.
//
// Operator   C(x)_i = x_i for the k largest |x_i|, else 0; k = max(1, round_half_up(ratio * count))
//            or the given k, at most count. Of equal magnitudes the lowest index is kept.
//            Magnitudes are compared as the bits of |x|, so that NaN is larger than infinity and
//            non-finite elements are sent before all others.
// Source     Aji and Heafield, EMNLP 2017 (arXiv 1704.05021); Stich et al., NeurIPS 2018 (arXiv
//            1809.07599). Indices: see elias_fano.hpp.
// Wire       byte 0         PayloadHeader (16 bytes), flags 0
//            byte 16        k values, fp32, in the order of their indices
//            byte 16 + 4k   their indices, Elias-Fano: k * l low bits, then k + ((count - 1) >> l)
//                           bits, each part padded to a byte; l = floor(log2(count / k))
// Size       16 + 4 k + ceil(k l / 8) + ceil((k + ((count - 1) >> l)) / 8); fixed by count and k;
//            about 5.1 bytes per kept element at ratio 0.01
// Bias       contractive, delta >= k / count; idempotent
// Exchange   sparse merge
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <functional>
#include <numeric>

#include "compressors/elias_fano.hpp"
#include "compressors/kernels.hpp"
#include "compressors/methods.hpp"
#include "compressors/sparse_method.hpp"

namespace tersum::compressors {
namespace {

constexpr std::size_t kScanChunk = 4096;
using Positions = std::array<std::uint32_t, kScanChunk + kernels::kSelectPadding>;

std::uint32_t magnitude_bits(float x) noexcept {
  return std::bit_cast<std::uint32_t>(x) & 0x7fffffffu;
}

// Calls visit(index) in order for every element whose magnitude bits are at least `threshold`,
// until it returns false.
template <class Visit>
void visit_at_least(std::span<const float> x, std::uint32_t threshold, const Visit& visit) {
  Positions positions;
  for (std::size_t first = 0; first < x.size(); first += kScanChunk) {
    const std::size_t found = kernels::select_at_least(
        x.data() + first, threshold, positions.data(), std::min(kScanChunk, x.size() - first));
    for (std::size_t i = 0; i < found; ++i) {
      if (!visit(first + positions[i])) return;
    }
  }
}

// What is kept: every magnitude above `threshold`, and the first `ties` that are equal to it.
struct Cut {
  std::uint32_t threshold;
  std::size_t ties;
};

// The bin of `counts` in which the k-th largest element lies; takes those of higher bins off k.
std::size_t bin_of_kth(std::span<const std::size_t> counts, std::size_t& k) {
  std::size_t bin = counts.size() - 1;
  while (counts[bin] < k) k -= counts[bin--];
  return bin;
}

constexpr std::size_t kTopBins = 2048;
constexpr std::size_t kLowerBins = 1024;

// A magnitude that, judging by a sample, a few more than k elements reach; 0 if a sample is not
// worth it. Saves counting the many small elements; a wrong guess costs time only.
std::uint32_t guess_threshold(std::span<const float> x, std::size_t k) {
  constexpr std::size_t kSample = 4096;
  const std::size_t size = std::min(kSample, x.size() / 8);
  const double expected =
      static_cast<double>(size) * static_cast<double>(k) / static_cast<double>(x.size());
  const auto rank = static_cast<std::size_t>(expected + 4 * std::sqrt(expected) + 4);
  if (rank >= size / 2) return 0;
  std::array<std::uint32_t, kSample> sample;
  const std::size_t stride = x.size() / size;
  for (std::size_t i = 0; i < size; ++i) sample[i] = magnitude_bits(x[i * stride]);
  const auto nth = sample.begin() + static_cast<std::ptrdiff_t>(rank);
  std::nth_element(sample.begin(), nth, sample.begin() + static_cast<std::ptrdiff_t>(size),
                   std::greater<>());
  return *nth;
}

// Histogram of the upper 11 of the 31 magnitude bits, of those that reach `threshold`.
std::array<std::size_t, kTopBins> top_histogram(std::span<const float> x, std::uint32_t threshold) {
  std::array<std::size_t, kTopBins> counts{};
  visit_at_least(x, threshold, [&](std::size_t index) {
    ++counts[magnitude_bits(x[index]) >> 20];
    return true;
  });
  return counts;
}

// Histogram of the next 10 bits, above `shift`, of the magnitudes that start with `prefix`.
std::array<std::size_t, kLowerBins> lower_histogram(std::span<const float> x, std::uint32_t prefix,
                                                    unsigned shift) {
  std::array<std::size_t, kLowerBins> counts{};
  visit_at_least(x, prefix, [&](std::size_t index) {
    const std::uint32_t offset = magnitude_bits(x[index]) - prefix;
    if (offset >> shift < kLowerBins) ++counts[offset >> shift];
    return true;
  });
  return counts;
}

// Radix selection, 11 + 10 + 10 bits; stops early when a bin ends exactly at the k-th element.
Cut find_cut(std::span<const float> x, std::size_t k) {
  std::uint32_t least = guess_threshold(x, k);
  auto top = top_histogram(x, least);
  if (least > 0 && std::accumulate(top.begin(), top.end(), std::size_t{0}) < k) {
    least = 0;
    top = top_histogram(x, 0);
  }
  const std::size_t top_bin = bin_of_kth(top, k);
  std::uint32_t prefix = static_cast<std::uint32_t>(top_bin) << 20;
  if (top[top_bin] == k) return {std::max(prefix, least), k};
  for (const unsigned shift : {10u, 0u}) {
    const auto counts = lower_histogram(x, prefix, shift);
    const std::size_t bin = bin_of_kth(counts, k);
    prefix |= static_cast<std::uint32_t>(bin) << shift;
    if (counts[bin] == k) break;
  }
  return {prefix, k};
}

class TopK final : public SparseMethod<TopK> {
 public:
  explicit TopK(KeepRule rule)
      : SparseMethod({.name = "topk",
                      .wire_id = wire_id::kTopK,
                      .wire_version = 1,
                      .bias = Bias::Contractive,
                      .aggregation = Aggregation::SparseMerge,
                      .block_count = 0,
                      .fixed_size = true,
                      .randomised = false,
                      .sparse = true,
                      .payload_dtype = DType::Float32},
                     "topk:" + to_string(rule), rule) {}

  std::size_t max_payload_bytes(std::size_t count) const override {
    return kHeaderBytes + body_bytes(EliasFanoLayout(count, rule_.kept(count)));
  }

  std::size_t compress(std::span<const float> input, const SliceContext&, CompressorState*,
                       std::span<std::byte> payload) const override {
    const EliasFanoLayout layout(input.size(), rule_.kept(input.size()));
    const auto body = begin_payload(traits(), 0, input.size(), body_bytes(layout), payload);
    if (layout.kept() > 0) encode(input, layout, body.data());
    return kHeaderBytes + body.size();
  }

  class Reader {
   public:
    Reader(const EliasFanoLayout& layout, std::span<const std::byte> body)
        : kept_(layout.kept()),
          values_(body.data()),
          indices_(layout, body.subspan(kept_ * sizeof(float))) {}
    std::size_t kept() const { return kept_; }
    float next(std::size_t& index) {
      index = indices_.next();
      return load<float>(values_, read_++);
    }

   private:
    std::size_t kept_;
    std::size_t read_ = 0;
    const std::byte* values_;
    EliasFanoReader indices_;
  };

  Reader open(std::span<const std::byte> payload, const SliceContext&, std::size_t count) const {
    const EliasFanoLayout layout(count, rule_.kept(count));
    const auto body = checked_body(traits(), 0, count, body_bytes(layout), payload);
    if (!valid_elias_fano(layout, body.subspan(layout.kept() * sizeof(float)))) {
      refuse_payload(traits(), "indices are not k increasing numbers below count");
    }
    return Reader(layout, body);
  }

 private:
  static std::size_t body_bytes(const EliasFanoLayout& layout) {
    return layout.kept() * sizeof(float) + layout.bytes();
  }

  static void encode(std::span<const float> x, const EliasFanoLayout& layout, std::byte* body) {
    Cut cut = find_cut(x, layout.kept());
    EliasFanoWriter indices(layout, body + layout.kept() * sizeof(float));
    std::size_t written = 0;
    visit_at_least(x, cut.threshold, [&](std::size_t index) {
      if (magnitude_bits(x[index]) == cut.threshold) {
        if (cut.ties == 0) return true;
        --cut.ties;
      }
      indices.put(index);
      store(body, written++, x[index]);
      return written < layout.kept();
    });
    indices.finish();
  }
};

}  // namespace

std::shared_ptr<const Compressor> make_topk(SpecParameters& parameters) {
  return std::make_shared<TopK>(get_keep_rule(parameters));
}

}  // namespace tersum::compressors
