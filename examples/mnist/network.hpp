// The LeNet-sized network: 431,080 parameters in 8 tensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "mnist/layers.hpp"

namespace mnist {

/// conv 20@5x5, pool, ReLU, conv 50@5x5, pool, ReLU, fc 500, ReLU, fc 10, softmax cross-entropy.
/// Parameters are numbered in the order in which the forward pass needs them: conv1.weight 0,
/// conv1.bias 1, ..., fc2.bias 7. No call allocates after construction, apart from scratch memory
/// that Eigen's matrix product may take.
class Network {
 public:
  /// Called with the number of a parameter.
  using Hook = std::function<void(std::size_t parameter)>;

  /// Parameters depend on `seed` only.
  Network(std::size_t maximum_batch, std::uint64_t seed);

  std::size_t parameters_count() const noexcept;  ///< elements of all parameters
  std::size_t tensors() const noexcept { return parameters_.size(); }
  Parameter& parameter(std::size_t number) noexcept { return *parameters_[number]; }

  /// 64-bit hash of all parameters' bits (FNV-1a over 32-bit words).
  std::uint64_t parameters_hash() const noexcept;

  /// Logits ([batch, 10]) of `images` ([batch, 28, 28]); valid until the next call. `before_use` is
  /// called once for each parameter, in order, just before the layer that needs it computes.
  std::span<const float> forward(std::span<const float> images, const Hook& before_use = {});

  /// After forward() of the same images: computes all gradients, from the last layer to the first,
  /// and returns the mean loss of the batch. `after_gradient` is called once for each parameter as
  /// soon as its gradient is complete, before the layers below compute theirs.
  double backward(std::span<const float> images, std::span<const std::uint8_t> labels,
                  const Hook& after_gradient = {});

 private:
  std::span<const float> input_of(std::size_t layer, std::span<const float> images) const;

  const std::size_t maximum_batch_;
  std::vector<std::unique_ptr<Layer>> layers_;
  std::vector<std::vector<float>> outputs_;           // one a layer, [maximum_batch, output]
  std::vector<std::vector<float>> output_gradients_;  // the same shapes
  std::vector<Parameter*> parameters_;                // of all layers, in forward order
  std::vector<std::size_t> first_parameter_;          // one a layer: number of its first
};

/// How many rows of `logits` ([batch, 10]) are largest at their label.
std::size_t count_correct(std::span<const float> logits, std::span<const std::uint8_t> labels);

}  // namespace mnist
