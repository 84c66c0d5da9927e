#include "mnist/optimizer.hpp"

namespace mnist {

float LearningRate::at(std::size_t step) const noexcept {
  if (step >= total_steps_) return 0.0f;
  if (step < warmup_steps_) {
    return static_cast<float>(peak_ * static_cast<double>(step + 1) /
                              static_cast<double>(warmup_steps_));
  }
  return static_cast<float>(peak_ * static_cast<double>(total_steps_ - step) /
                            static_cast<double>(total_steps_ - warmup_steps_));
}

Sgd::Sgd(float momentum, const std::vector<std::size_t>& counts) : momentum_(momentum) {
  for (const std::size_t count : counts) velocity_.emplace_back(count);
}

void Sgd::apply(std::size_t tensor, float rate, std::span<const float> gradient,
                std::span<float> value) noexcept {
  float* velocity = velocity_[tensor].data();
  for (std::size_t i = 0; i < value.size(); ++i) {
    velocity[i] = momentum_ * velocity[i] + gradient[i];
    value[i] -= rate * velocity[i];
  }
}

}  // namespace mnist
