// none, fp16, bf16: every element, as it is or rounded to a narrower type.
//
// Operator   C(x)_i = x_i (none); x_i rounded to nearest even in the type (fp16, bf16), subnormals,
//            signed zeros, infinities and NaN kept; fp16 overflows to infinity beyond 65504.
// Source     Micikevicius et al., "Mixed precision training", ICLR 2018 (arXiv 1710.03740);
// Kalamkar
//            et al., "A study of BFLOAT16 for deep learning training" (arXiv 1905.12322).
// Wire       byte 0    PayloadHeader (16 bytes), flags 0
//            byte 16   count elements of the type, little-endian
// Size       16 + 4 * count (none), 16 + 2 * count (fp16, bf16); fixed
// Bias       none: exact. fp16, bf16: contractive, relative error per element at most 2^-11 and
// 2^-8
//            while the element is a normal number of the type
// Exchange   linear: bodies are summed in payload_dtype
#include "compressors/convert.hpp"
#include "compressors/dense_method.hpp"
#include "compressors/methods.hpp"

namespace tersum::compressors {
namespace {

class Cast final : public DenseMethod {
 public:
  Cast(std::string_view name, std::uint16_t id, Bias bias, DType dtype)
      : DenseMethod({.name = name,
                     .wire_id = id,
                     .wire_version = 1,
                     .bias = bias,
                     .aggregation = Aggregation::Linear,
                     .block_count = 1,
                     .fixed_size = true,
                     .randomised = false,
                     .sparse = false,
                     .payload_dtype = dtype},
                    std::string(name)),
        dtype_(dtype) {}

 private:
  std::size_t body_bytes(std::size_t count) const override { return count * element_bytes(dtype_); }
  void encode(std::span<const float> input, const SliceContext&, std::byte* body) const override {
    from_float(input.data(), dtype_, body, input.size());
  }
  void decode(const std::byte* body, std::size_t, std::size_t first,
              std::span<float> output) const override {
    to_float(dtype_, body + first * element_bytes(dtype_), output.data(), output.size());
  }

  DType dtype_;
};

}  // namespace

std::shared_ptr<const Compressor> make_none(SpecParameters&) {
  return std::make_shared<Cast>("none", wire_id::kNone, Bias::Unbiased, DType::Float32);
}

std::shared_ptr<const Compressor> make_float16(SpecParameters&) {
  return std::make_shared<Cast>("fp16", wire_id::kFloat16, Bias::Contractive, DType::Float16);
}

std::shared_ptr<const Compressor> make_bfloat16(SpecParameters&) {
  return std::make_shared<Cast>("bf16", wire_id::kBFloat16, Bias::Contractive, DType::BFloat16);
}

}  // namespace tersum::compressors
