// qint: blocks of small signed integers with a common scale.
//
// Operator   L = 2^(bits-1) - 1, s = max|x| of the block, y = x / s * L (in this order, fp32);
//            nearest:    q = y rounded to nearest even
//            stochastic: q = floor(y + (r + 1/2) / 2^16), r the 16-bit draw of the element
//            C(x) = (q * (1 / L)) * s, rounded after each product. The largest |x| is exact.
//            A block of zeros decodes to zeros; a block with an infinity or a NaN decodes to NaN.
// Source     QSGD with the maximum norm and fixed-width codes: Alistarh et al., NeurIPS 2017 (arXiv
//            1610.02132), section 3; blocks as in CGX, Markov et al. (arXiv 2111.08617).
// Deviation  the draws have 16 bits, so the expectation is exact to 2^-17 of a level.
// Wire       byte 0            PayloadHeader (16 bytes), flags = bits
//            byte 16           B = ceil(count / block) scales, fp32; NaN: poisoned block
//            byte 16 + 4 B     codes, two's complement of `bits` bits, little-endian bit order;
//            every
//                              block starts at a byte; unused bits of the last byte are 0. The code
//                              -2^(bits-1) is never written; it decodes by the same formula
// Size       16 + 4 B + ceil(count * bits / 8); fixed
// Bias       nearest: contractive, every |C(x)_i - x_i| <= min(|x_i|, s / (2 L)) up to rounding.
//            stochastic: unbiased, variance (s / L)^2 f (1 - f) with f the fraction of y
// Exchange   recompress
#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "compressors/block_scales.hpp"
#include "compressors/dense_method.hpp"
#include "compressors/kernels.hpp"
#include "compressors/methods.hpp"
#include "compressors/philox.hpp"

namespace tersum::compressors {
namespace {

constexpr std::uint32_t kInfinityBits = 0x7f800000u;

class QInt final : public DenseMethod {
 public:
  QInt(int bits, std::size_t block, bool stochastic)
      : DenseMethod({.name = "qint",
                     .wire_id = wire_id::kQInt,
                     .wire_version = 1,
                     .bias = stochastic ? Bias::Unbiased : Bias::Contractive,
                     .aggregation = Aggregation::Recompress,
                     .block_count = block,
                     .fixed_size = true,
                     .randomised = stochastic,
                     .sparse = false,
                     .payload_dtype = DType::Float32},
                    "qint:bits=" + std::to_string(bits) + ",block=" + std::to_string(block) +
                        ",rounding=" + (stochastic ? "stochastic" : "nearest"),
                    static_cast<std::uint8_t>(bits)),
        layout_{block, static_cast<std::size_t>(bits)},
        bits_(bits),
        levels_((1 << (bits - 1)) - 1),
        stochastic_(stochastic) {}

 private:
  std::size_t body_bytes(std::size_t count) const override { return layout_.body_bytes(count); }

  void check(const std::byte* body, std::size_t count) const override {
    layout_.check(traits(), body, count);
  }

  void encode(std::span<const float> input, const SliceContext& context,
              std::byte* body) const override {
    const DrawStream draws = draw_stream(context, Purpose::Rounding);
    std::byte* codes = body + layout_.scale_bytes(input.size());
    for (std::size_t first = 0, b = 0; first < input.size(); first += layout_.block, ++b) {
      const auto block = input.subspan(first, std::min(layout_.block, input.size() - first));
      const std::uint32_t magnitude = kernels::max_magnitude(block.data(), block.size());
      const bool poisoned = magnitude >= kInfinityBits;
      store(body, b, poisoned ? kPoisonedScale : std::bit_cast<float>(magnitude));
      std::byte* out = codes + layout_.code_bytes(first);
      if (poisoned || magnitude == 0) {
        std::memset(out, 0, layout_.code_bytes(block.size()));
      } else {
        encode_block(block, std::bit_cast<float>(magnitude), draws, context.offset + first, out);
      }
    }
  }

  void encode_block(std::span<const float> block, float scale, const DrawStream& stream,
                    std::uint64_t element, std::byte* out) const {
    std::array<std::int8_t, kChunk> codes;
    std::array<std::uint16_t, kChunk> draws;
    for (std::size_t first = 0; first < block.size(); first += kChunk) {
      const std::size_t count = std::min(kChunk, block.size() - first);
      const float* x = block.data() + first;
      if (stochastic_) {
        draw_16(stream, element + first, std::span(draws).first(count));
        kernels::quantise_stochastic(x, scale, levels_, draws.data(), codes.data(), count);
      } else {
        kernels::quantise_nearest(x, scale, levels_, codes.data(), count);
      }
      kernels::pack_codes(codes.data(), bits_, out + layout_.code_bytes(first), count);
    }
  }

  void decode(const std::byte* body, std::size_t count, std::size_t first,
              std::span<float> output) const override {
    const std::byte* codes = body + layout_.scale_bytes(count);
    std::array<std::int8_t, kChunk> staged;
    for (std::size_t done = 0; done < output.size();) {
      // Up to the end of the block, of the staging buffer or of what is asked for.
      const std::size_t element = first + done;
      const std::size_t take =
          std::min({layout_.block - element % layout_.block, kChunk, output.size() - done});
      kernels::unpack_codes(codes + layout_.code_bytes(element), bits_, staged.data(), take);
      kernels::dequantise(staged.data(), load<float>(body, element / layout_.block), levels_,
                          output.data() + done, take);
      done += take;
    }
  }

  BlockLayout layout_;
  int bits_;
  int levels_;
  bool stochastic_;
};

}  // namespace

std::shared_ptr<const Compressor> make_qint(SpecParameters& parameters) {
  const auto bits = static_cast<int>(parameters.get_integer("bits", 4, 2, 8));
  const std::size_t block = get_block(parameters);
  const bool stochastic =
      parameters.get_choice("rounding", "nearest", {"nearest", "stochastic"}) == "stochastic";
  return std::make_shared<QInt>(bits, block, stochastic);
}

}  // namespace tersum::compressors
