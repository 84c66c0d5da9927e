// Base of the methods whose payload holds every element, in a fixed size that depends on the count
// only.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "compressors/payload.hpp"

namespace tersum::compressors {

/// Does headers, checks and staging; a method adds its layout and its arithmetic.
class DenseMethod : public Compressor {
 public:
  const CompressorTraits& traits() const noexcept final { return traits_; }
  std::string spec() const final { return spec_; }
  std::size_t max_payload_bytes(std::size_t count) const final {
    return kHeaderBytes + body_bytes(count);
  }
  std::size_t compress(std::span<const float> input, const SliceContext& context,
                       CompressorState* state, std::span<std::byte> payload) const final;
  void decompress(std::span<const std::byte> payload, const SliceContext& context,
                  std::span<float> output) const final;
  void decompress_add(std::span<const std::byte> payload, const SliceContext& context, float scale,
                      std::span<float> accumulator) const final;

 protected:
  DenseMethod(CompressorTraits traits, std::string spec, std::uint8_t flags = 0)
      : traits_(traits), spec_(std::move(spec)), flags_(flags) {}

  virtual std::size_t body_bytes(std::size_t count) const = 0;
  /// Fills `body`, which has body_bytes(input.size()).
  virtual void encode(std::span<const float> input, const SliceContext& context,
                      std::byte* body) const = 0;
  /// Error Protocol (refuse_payload) if a body of the right size cannot be right.
  virtual void check(const std::byte* body, std::size_t count) const;
  /// Elements [first, first + output.size()) of a body of `count` elements; `first` is a multiple
  /// of kChunk.
  virtual void decode(const std::byte* body, std::size_t count, std::size_t first,
                      std::span<float> output) const = 0;

 private:
  const std::byte* checked(std::span<const std::byte> payload, std::size_t count) const;

  CompressorTraits traits_;
  std::string spec_;
  std::uint8_t flags_;
};

}  // namespace tersum::compressors
