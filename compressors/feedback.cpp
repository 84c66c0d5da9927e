#include "compressors/feedback.hpp"

#include <string>

#include "compressors/kernels.hpp"
#include "compressors/methods.hpp"
#include "compressors/step_buffers.hpp"
#include "compressors/text.hpp"

namespace tersum::compressors {
namespace {

// Arrays of the state.
constexpr std::size_t kResidual = 0;
constexpr std::size_t kVelocity = 1;

class Feedback final : public Compressor {
 public:
  Feedback(std::shared_ptr<const Compressor> base, std::optional<double> momentum)
      : base_(std::move(base)), momentum_(momentum) {
    spec_ = base_->spec() + "+ef";
    if (momentum_) spec_ += "+momentum=" + number_text(*momentum_);
    // The owner of a shard feeds back what encoding the sum loses. An unbiased error needs none,
    // and momentum belongs to the ranks' gradients only.
    if (traits().bias == Bias::Unbiased) {
      reducer_ = base_;
    } else if (momentum_) {
      reducer_ = std::make_shared<Feedback>(base_, std::nullopt);
    }
  }

  const CompressorTraits& traits() const noexcept override { return base_->traits(); }
  std::string spec() const override { return spec_; }
  std::size_t max_payload_bytes(std::size_t count) const override {
    return base_->max_payload_bytes(count);
  }
  std::unique_ptr<CompressorState> make_state(std::size_t count) const override {
    return std::make_unique<StepBuffers>(momentum_ ? 2 : 1, count, base_->make_state(count));
  }

  std::size_t compress(std::span<const float> input, const SliceContext& context,
                       CompressorState* state, std::span<std::byte> payload) const override {
    StepBuffers& buffers = checked(state, input.size(), context.offset);
    const std::size_t offset = context.offset;
    const std::size_t count = input.size();
    // The next residual starts as what is sent; what arrives of it is taken off again.
    const std::span<float> sum(buffers.next(kResidual, offset), count);
    if (momentum_) {
      kernels::add_momentum(input.data(), buffers.current(kVelocity, offset),
                            buffers.current(kResidual, offset), static_cast<float>(*momentum_),
                            buffers.next(kVelocity, offset), sum.data(), count);
    } else {
      kernels::add(input.data(), buffers.current(kResidual, offset), sum.data(), count);
    }
    const std::size_t bytes = base_->compress(sum, context, buffers.inner(), payload);
    const auto sent = std::span<const std::byte>(payload).first(bytes);
    base_->decompress_add(sent, context, -1.0f, sum);
    kernels::zero_nonfinite(sum.data(), count);
    if (momentum_) {
      const std::span<float> velocity(buffers.next(kVelocity, offset), count);
      base_->clear_sent(sent, context, velocity);
      kernels::zero_nonfinite(velocity.data(), count);
    }
    buffers.mark_written(offset, count);
    return bytes;
  }

  void decompress(std::span<const std::byte> payload, const SliceContext& context,
                  std::span<float> output) const override {
    base_->decompress(payload, context, output);
  }
  void decompress_add(std::span<const std::byte> payload, const SliceContext& context, float scale,
                      std::span<float> accumulator) const override {
    base_->decompress_add(payload, context, scale, accumulator);
  }
  void clear_sent(std::span<const std::byte> payload, const SliceContext& context,
                  std::span<float> values) const override {
    base_->clear_sent(payload, context, values);
  }
  std::shared_ptr<const Compressor> reducer() const override { return reducer_; }

 private:
  StepBuffers& checked(CompressorState* state, std::size_t count, std::uint64_t offset) const {
    auto* buffers = dynamic_cast<StepBuffers*>(state);
    if (buffers == nullptr) {
      throw Error(Code::InvalidArgument,
                  spec_ + ": compress() needs the state that make_state() of it gave");
    }
    if (offset > buffers->count() || count > buffers->count() - offset) {
      throw Error(Code::InvalidArgument, spec_ + ": elements " + std::to_string(offset) + " to " +
                                             std::to_string(offset + count) +
                                             " are not inside a state of " +
                                             std::to_string(buffers->count()));
    }
    return *buffers;
  }

  std::shared_ptr<const Compressor> base_;
  std::optional<double> momentum_;
  std::string spec_;
  std::shared_ptr<const Compressor> reducer_;
};

}  // namespace

std::shared_ptr<const Compressor> with_feedback(std::shared_ptr<const Compressor> base,
                                                std::optional<double> momentum) {
  const CompressorTraits& traits = base->traits();
  if (traits.wire_id == wire_id::kNone) {
    throw Error(Code::InvalidArgument,
                "none loses nothing, so there is no error to feed back; remove '+ef'");
  }
  if (traits.bias == Bias::Unbiased && traits.sparse) {
    throw Error(Code::InvalidArgument,
                base->spec() +
                    " scales up what it sends to stay unbiased; error feedback would make the "
                    "residual grow without bound. Use it without '+ef', or without the scaling");
  }
  return std::make_shared<Feedback>(std::move(base), momentum);
}

}  // namespace tersum::compressors
