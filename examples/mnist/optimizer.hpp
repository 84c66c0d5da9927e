// Stochastic gradient descent with momentum, and its learning rate over time.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace mnist {

/// Rises linearly from 0 to `peak` over `warmup_steps`, then falls linearly to 0 at `total_steps`.
/// Error feedback sends late what it holds back: small first steps keep that harmless while the
/// loss is steep, and small last steps let the residuals arrive.
class LearningRate {
 public:
  LearningRate(double peak, std::size_t warmup_steps, std::size_t total_steps)
      : peak_(peak), warmup_steps_(warmup_steps), total_steps_(total_steps) {}
  /// For step 0, 1, ...; positive below total_steps if peak is.
  float at(std::size_t step) const noexcept;

 private:
  double peak_;
  std::size_t warmup_steps_;
  std::size_t total_steps_;
};

/// velocity = momentum * velocity + gradient; value -= rate * velocity. Element by element and in
/// fp32, so ranks that apply equal gradients to equal values keep equal values.
class Sgd {
 public:
  /// `counts[i]`: elements of tensor i.
  Sgd(float momentum, const std::vector<std::size_t>& counts);
  /// One step of one tensor; value and gradient are [counts[tensor]].
  void apply(std::size_t tensor, float rate, std::span<const float> gradient,
             std::span<float> value) noexcept;

 private:
  const float momentum_;
  std::vector<std::vector<float>> velocity_;
};

}  // namespace mnist
