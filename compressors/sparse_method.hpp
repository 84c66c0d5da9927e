// Base of the methods that send a fixed number of elements and take the others as zero.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>
#include <string>

#include "compressors/payload.hpp"

namespace tersum::compressors {

/// How many elements of a gradient are sent: `k`, or if that is 0 a `ratio` of them.
struct KeepRule {
  double ratio = 0;
  std::size_t k = 0;

  /// max(1, ratio * count rounded half up), at most count; 0 for count 0.
  std::size_t kept(std::size_t count) const noexcept {
    if (k > 0 || count == 0) return std::min(k, count);
    const double wanted = std::floor(ratio * static_cast<double>(count) + 0.5);
    return std::clamp(static_cast<std::size_t>(wanted), std::size_t{1}, count);
  }
};

/// Parameters "ratio" (default 0.01) or "k"; Error InvalidArgument if both are given.
KeepRule get_keep_rule(SpecParameters& parameters);

/// "ratio=0.01" or "k=100".
std::string to_string(const KeepRule& rule);

/// Decoding on top of Method::open(payload, context, count), which checks all of an untrusted
/// payload and returns a reader: kept() elements, each next(index) gives an index below count and
/// the element's value.
template <class Method>
class SparseMethod : public Compressor {
 public:
  const CompressorTraits& traits() const noexcept final { return traits_; }
  std::string spec() const final { return spec_; }

  void decompress(std::span<const std::byte> payload, const SliceContext& context,
                  std::span<float> output) const final {
    auto reader = method().open(payload, context, output.size());
    std::fill(output.begin(), output.end(), 0.0f);
    each(reader, [&](std::size_t index, float value) { output[index] = value; });
  }

  void decompress_add(std::span<const std::byte> payload, const SliceContext& context, float scale,
                      std::span<float> accumulator) const final {
    auto reader = method().open(payload, context, accumulator.size());
    each(reader, [&](std::size_t index, float value) { accumulator[index] += scale * value; });
  }

  void clear_sent(std::span<const std::byte> payload, const SliceContext& context,
                  std::span<float> values) const final {
    auto reader = method().open(payload, context, values.size());
    each(reader, [&](std::size_t index, float) { values[index] = 0.0f; });
  }

 protected:
  SparseMethod(CompressorTraits traits, std::string spec, KeepRule rule)
      : rule_(rule), traits_(traits), spec_(std::move(spec)) {}

  KeepRule rule_;

 private:
  template <class Reader, class Visit>
  static void each(Reader& reader, const Visit& visit) {
    std::size_t index = 0;
    for (std::size_t i = 0; i < reader.kept(); ++i) {
      const float value = reader.next(index);
      visit(index, value);
    }
  }
  const Method& method() const noexcept { return static_cast<const Method&>(*this); }

  CompressorTraits traits_;
  std::string spec_;
};

}  // namespace tersum::compressors
