// sign: one bit per element and the mean magnitude of each block.
//
// Operator   s = (sum of |x|) / n of the block, C(x)_i = s with the sign bit of x_i (so that -0
//            counts as negative). The sum is fp32 in a fixed shape, which a warp of 32 lanes can
//            repeat: lane l adds the elements l, l + 32, ... in order; then lane l adds lane l +
//            16, l + 8, l + 4, l + 2, l + 1; the total is divided once by n. A block of zeros
//            decodes to zeros; a block with an infinity or a NaN, or whose sum is beyond fp32,
//            decodes to NaN.
// Source     Karimireddy et al., "Error feedback fixes signSGD", ICML 2019 (arXiv 1901.09847), eq.
// 5;
//            in blocks: Zheng et al., NeurIPS 2019 (arXiv 1905.10936).
// Wire       byte 0          PayloadHeader (16 bytes), flags 0
//            byte 16         B = ceil(count / block) scales, fp32; NaN: poisoned block
//            byte 16 + 4 B   one bit per element, 1 = negative, first element in the lowest bit;
//                            unused bits of the last byte are 0
// Size       16 + 4 B + ceil(count / 8); fixed
// Bias       contractive: ||C(x) - x||^2 = ||x||^2 - ||x||_1^2 / n per block, so delta = ||x||_1^2
// /
//            (n ||x||_2^2) >= 1 / n
// Exchange   recompress
#include <algorithm>
#include <cstring>

#include "compressors/block_scales.hpp"
#include "compressors/dense_method.hpp"
#include "compressors/kernels.hpp"
#include "compressors/methods.hpp"

namespace tersum::compressors {
namespace {

class Sign final : public DenseMethod {
 public:
  explicit Sign(std::size_t block)
      : DenseMethod({.name = "sign",
                     .wire_id = wire_id::kSign,
                     .wire_version = 1,
                     .bias = Bias::Contractive,
                     .aggregation = Aggregation::Recompress,
                     .block_count = block,
                     .fixed_size = true,
                     .randomised = false,
                     .sparse = false,
                     .payload_dtype = DType::Float32},
                    "sign:block=" + std::to_string(block)),
        layout_{block, 1} {}

 private:
  std::size_t body_bytes(std::size_t count) const override { return layout_.body_bytes(count); }

  void check(const std::byte* body, std::size_t count) const override {
    layout_.check(traits(), body, count);
  }

  void encode(std::span<const float> input, const SliceContext&, std::byte* body) const override {
    std::byte* bits = body + layout_.scale_bytes(input.size());
    for (std::size_t first = 0, b = 0; first < input.size(); first += layout_.block, ++b) {
      const auto block = input.subspan(first, std::min(layout_.block, input.size() - first));
      const float mean =
          kernels::absolute_sum(block.data(), block.size()) / static_cast<float>(block.size());
      std::byte* out = bits + layout_.code_bytes(first);
      if (std::isfinite(mean)) {
        store(body, b, mean);
        kernels::pack_signs(block.data(), out, block.size());
      } else {
        store(body, b, kPoisonedScale);
        std::memset(out, 0, layout_.code_bytes(block.size()));
      }
    }
  }

  void decode(const std::byte* body, std::size_t count, std::size_t first,
              std::span<float> output) const override {
    const std::byte* bits = body + layout_.scale_bytes(count);
    for (std::size_t done = 0; done < output.size();) {
      const std::size_t element = first + done;
      const std::size_t take =
          std::min(layout_.block - element % layout_.block, output.size() - done);
      kernels::unpack_signs(bits + layout_.code_bytes(element),
                            load<float>(body, element / layout_.block), output.data() + done, take);
      done += take;
    }
  }

  BlockLayout layout_;
};

}  // namespace

std::shared_ptr<const Compressor> make_sign(SpecParameters& parameters) {
  return std::make_shared<Sign>(get_block(parameters));
}

}  // namespace tersum::compressors
