// Geometry shared by the methods that give each block a scale: scales first, then codes.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>

#include "compressors/payload.hpp"

namespace tersum::compressors {

/// What a block with an infinity or a NaN stores as its scale: it decodes to NaN as a whole.
inline constexpr float kPoisonedScale = std::numeric_limits<float>::quiet_NaN();

/// Body = one fp32 scale per block, then `bits` per element; blocks hold `block` elements (a
/// multiple of 8, so that each block's codes start at a byte), the last one maybe fewer.
struct BlockLayout {
  std::size_t block;
  std::size_t bits;

  std::size_t blocks(std::size_t count) const noexcept {
    return count / block + (count % block != 0 ? 1 : 0);
  }
  std::size_t scale_bytes(std::size_t count) const noexcept {
    return blocks(count) * sizeof(float);
  }
  /// Bytes of the codes of `count` elements.
  std::size_t code_bytes(std::size_t count) const noexcept {
    return count / 8 * bits + (count % 8 * bits + 7) / 8;
  }
  std::size_t body_bytes(std::size_t count) const noexcept {
    return scale_bytes(count) + code_bytes(count);
  }

  /// Error Protocol if a scale is negative or infinite, or an unused bit of the last byte is set.
  void check(const CompressorTraits& traits, const std::byte* body, std::size_t count) const {
    for (std::size_t b = 0; b < blocks(count); ++b) {
      const float scale = load<float>(body, b);
      if (std::signbit(scale) || std::isinf(scale)) {
        refuse_payload(traits, "a scale is negative or infinite");
      }
    }
    const std::size_t used_bits = count % 8 * bits % 8;
    if (used_bits == 0) return;
    const auto last = std::to_integer<unsigned>(body[body_bytes(count) - 1]);
    if (last >> used_bits != 0) refuse_payload(traits, "unused bits of the last byte are set");
  }
};

/// Parameter "block": 32..65536, a multiple of 32.
inline std::size_t get_block(SpecParameters& parameters) {
  const std::int64_t block = parameters.get_integer("block", 512, 32, 65536);
  if (block % 32 != 0) {
    throw Error(Code::InvalidArgument, "block=" + std::to_string(block) +
                                           " is not a multiple of 32; try block=" +
                                           std::to_string((block + 31) / 32 * 32));
  }
  return static_cast<std::size_t>(block);
}

}  // namespace tersum::compressors
