// threshold: sends every element whose magnitude is at least tau.
//
// Operator   C(x)_i = x_i if |x_i| >= tau or x_i is not finite, else 0
// Source     Strom, "Scalable distributed DNN training using commodity GPU cloud computing",
//            Interspeech 2015; here the value is sent instead of +-tau
// Wire       byte 0         PayloadHeader (16 bytes), flags 0; body_bytes = 8 * sent
//            byte 16        sent indices, uint32, ascending
//            then           sent values, fp32, in the same order
// Size       at most 16 + 8 * count; how many are sent depends on the data
// Bias       neither: everything may be below tau. Use it with "+ef"
// Exchange   sparse merge
#include "threshold.hpp"

#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>

namespace example {
namespace {

using tersum::Code;
using tersum::Error;
using tersum::PayloadHeader;
using tersum::SliceContext;

constexpr std::uint16_t kWireId = 0x8001;
constexpr std::uint8_t kWireVersion = 1;

class Threshold final : public tersum::Compressor {
 public:
  explicit Threshold(double tau) : tau_(static_cast<float>(tau)) {
    char text[32];
    const auto end = std::to_chars(text, text + sizeof text, tau).ptr;
    spec_ = "threshold:tau=" + std::string(text, end);
    traits_.name = "threshold";
    traits_.wire_id = kWireId;
    traits_.wire_version = kWireVersion;
    traits_.bias = tersum::Bias::Neither;
    traits_.aggregation = tersum::Aggregation::SparseMerge;
    traits_.block_count = 1;  // each element is looked at by itself
    traits_.fixed_size = false;
    traits_.sparse = true;
  }

  const tersum::CompressorTraits& traits() const noexcept override { return traits_; }
  std::string spec() const override { return spec_; }
  std::size_t max_payload_bytes(std::size_t count) const override {
    return sizeof(PayloadHeader) + count * (sizeof(std::uint32_t) + sizeof(float));
  }

  std::size_t compress(std::span<const float> input, const SliceContext&, tersum::CompressorState*,
                       std::span<std::byte> payload) const override {
    if (input.size() > std::numeric_limits<std::uint32_t>::max() / 8) {
      throw Error(Code::Unsupported, "threshold: more than 2^29 elements; cut the gradient");
    }
    if (payload.size() < max_payload_bytes(input.size())) {
      throw Error(Code::InvalidArgument, "threshold: the payload buffer is too small");
    }
    std::size_t sent = 0;
    for (const float x : input) sent += is_sent(x) ? 1 : 0;
    const PayloadHeader header{kWireId, kWireVersion, 0, static_cast<std::uint32_t>(8 * sent),
                               input.size()};
    std::memcpy(payload.data(), &header, sizeof header);
    std::byte* index_at = payload.data() + sizeof header;
    std::byte* value_at = index_at + 4 * sent;
    for (std::size_t i = 0; i < input.size(); ++i) {
      if (!is_sent(input[i])) continue;
      const auto index = static_cast<std::uint32_t>(i);
      std::memcpy(index_at, &index, sizeof index);
      std::memcpy(value_at, &input[i], sizeof(float));
      index_at += sizeof index;
      value_at += sizeof(float);
    }
    return sizeof header + 8 * sent;
  }

  void decompress(std::span<const std::byte> payload, const SliceContext&,
                  std::span<float> output) const override {
    const Body body = checked(payload, output.size());
    for (float& value : output) value = 0.0f;
    for (std::size_t i = 0; i < body.sent; ++i) output[body.index(i)] = body.value(i);
  }

  void decompress_add(std::span<const std::byte> payload, const SliceContext&, float scale,
                      std::span<float> accumulator) const override {
    const Body body = checked(payload, accumulator.size());
    for (std::size_t i = 0; i < body.sent; ++i) {
      accumulator[body.index(i)] += scale * body.value(i);
    }
  }

  void clear_sent(std::span<const std::byte> payload, const SliceContext&,
                  std::span<float> values) const override {
    const Body body = checked(payload, values.size());
    for (std::size_t i = 0; i < body.sent; ++i) values[body.index(i)] = 0.0f;
  }

 private:
  struct Body {
    std::size_t sent;
    const std::byte* bytes;

    std::uint32_t index(std::size_t i) const {
      std::uint32_t result;
      std::memcpy(&result, bytes + 4 * i, sizeof result);
      return result;
    }
    float value(std::size_t i) const {
      float result;
      std::memcpy(&result, bytes + 4 * (sent + i), sizeof result);
      return result;
    }
  };

  // Written so that NaN, which compares false with everything, is sent.
  bool is_sent(float x) const { return !(std::fabs(x) < tau_); }

  // The bytes come from the network: nothing is believed before it has been checked.
  static Body checked(std::span<const std::byte> payload, std::size_t count) {
    const auto refuse = [](const char* what) {
      throw Error(Code::Protocol, std::string("threshold payload: ") + what);
    };
    PayloadHeader header;
    if (payload.size() < sizeof header) refuse("shorter than a header");
    std::memcpy(&header, payload.data(), sizeof header);
    if (header.wire_id != kWireId) refuse("another wire id");
    if (header.wire_version != kWireVersion) refuse("another wire version");
    if (header.flags != 0) refuse("unknown flags");
    if (header.count != count) refuse("another count");
    if (header.body_bytes != payload.size() - sizeof header) refuse("body_bytes is not its size");
    if (header.body_bytes % 8 != 0) refuse("body_bytes is not a multiple of 8");
    const Body body{header.body_bytes / 8, payload.data() + sizeof header};
    for (std::size_t i = 0; i < body.sent; ++i) {
      if (body.index(i) >= count) refuse("an index is out of range");
      if (i > 0 && body.index(i) <= body.index(i - 1)) refuse("indices do not ascend");
    }
    return body;
  }

  float tau_;
  std::string spec_;
  tersum::CompressorTraits traits_;
};

}  // namespace

tersum::CompressorEntry threshold_entry() {
  return {"threshold", kWireId, "elements of magnitude tau (0.001) or more",
          [](tersum::SpecParameters& parameters) -> std::shared_ptr<const tersum::Compressor> {
            return std::make_shared<Threshold>(parameters.get_double("tau", 1e-3, 0.0, 1e30));
          }};
}

}  // namespace example
