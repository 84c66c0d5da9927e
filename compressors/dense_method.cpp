#include "compressors/dense_method.hpp"

#include <algorithm>
#include <array>

#include "compressors/kernels.hpp"

namespace tersum::compressors {

void DenseMethod::check(const std::byte*, std::size_t) const {}

std::size_t DenseMethod::compress(std::span<const float> input, const SliceContext& context,
                                  CompressorState*, std::span<std::byte> payload) const {
  const auto body = begin_payload(traits_, flags_, input.size(), body_bytes(input.size()), payload);
  encode(input, context, body.data());
  return kHeaderBytes + body.size();
}

const std::byte* DenseMethod::checked(std::span<const std::byte> payload, std::size_t count) const {
  const auto body = checked_body(traits_, flags_, count, body_bytes(count), payload);
  check(body.data(), count);
  return body.data();
}

void DenseMethod::decompress(std::span<const std::byte> payload, const SliceContext&,
                             std::span<float> output) const {
  const std::byte* body = checked(payload, output.size());
  decode(body, output.size(), 0, output);
}

void DenseMethod::decompress_add(std::span<const std::byte> payload, const SliceContext&,
                                 float scale, std::span<float> accumulator) const {
  const std::byte* body = checked(payload, accumulator.size());
  std::array<float, kChunk> staged;
  for (std::size_t first = 0; first < accumulator.size(); first += kChunk) {
    const std::size_t count = std::min(kChunk, accumulator.size() - first);
    decode(body, accumulator.size(), first, std::span(staged).first(count));
    kernels::add_scaled(accumulator.data() + first, scale, staged.data(), count);
  }
}

}  // namespace tersum::compressors
