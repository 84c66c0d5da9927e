// Base of the methods that send a fixed number of elements and take the others as zero.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>

#include "compressors/keep_rule.hpp"
#include "compressors/payload.hpp"

namespace tersum::compressors {

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
