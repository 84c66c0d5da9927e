// The layers of the network. All tensors are fp32, row-major, images first: [batch, channels,
// height, width].
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "mnist/random.hpp"

namespace mnist {

/// Shape of one image's tensor.
struct Shape {
  std::size_t channels = 1;
  std::size_t height = 1;
  std::size_t width = 1;
  std::size_t count() const noexcept { return channels * height * width; }
};

/// A trainable tensor and the gradient of the loss with respect to it.
struct Parameter {
  std::string key;              ///< "conv1.weight"
  std::vector<float> value;     ///< [count]
  std::vector<float> gradient;  ///< [count]
};

/// One step of the network. Sizes are fixed when it is made; no call allocates. The batch of a call
/// is what its spans hold, at most the batch given at construction.
class Layer {
 public:
  virtual ~Layer() = default;
  Layer(const Layer&) = delete;
  Layer& operator=(const Layer&) = delete;

  const Shape& input_shape() const noexcept { return input_; }
  const Shape& output_shape() const noexcept { return output_; }

  /// Weight, then bias; none for layers that learn nothing.
  std::span<Parameter> parameters() noexcept { return parameters_; }

  /// output = f(input). The layer may keep notes for the backward pass.
  virtual void forward(std::span<const float> input, std::span<float> output) = 0;

  /// Overwrites the gradients of the parameters. `input` and the notes are those of the last
  /// forward().
  virtual void backward_parameters(std::span<const float> /*input*/,
                                   std::span<const float> /*output_gradient*/) {}

  /// Overwrites `input_gradient`. `output` and the notes are those of the last forward().
  virtual void backward_input(std::span<const float> output, std::span<const float> output_gradient,
                              std::span<float> input_gradient) = 0;

 protected:
  Layer(Shape input, Shape output) : input_(input), output_(output) {}

  /// Weights uniform in ±limit, biases 0.
  void make_parameters(const std::string& name, std::size_t weights, std::size_t biases,
                       double limit, Random& random);
  Parameter& weight() noexcept { return parameters_[0]; }
  Parameter& bias() noexcept { return parameters_[1]; }

  const Shape input_;
  const Shape output_;

 private:
  std::vector<Parameter> parameters_;
};

/// Convolution with square filters, stride 1, no padding, as im2col and one matrix product an
/// image. weight: [filters, channels, kernel, kernel], bias: [filters].
class Convolution : public Layer {
 public:
  /// He initialisation: variance 2 / fan-in.
  Convolution(const std::string& name, Shape input, std::size_t filters, std::size_t kernel,
              std::size_t maximum_batch, Random& random);
  void forward(std::span<const float> input, std::span<float> output) override;
  void backward_parameters(std::span<const float> input,
                           std::span<const float> output_gradient) override;
  void backward_input(std::span<const float> output, std::span<const float> output_gradient,
                      std::span<float> input_gradient) override;

 private:
  void gather(const float* image, float* columns) const;
  void scatter_add(const float* columns, float* image) const;

  const std::size_t kernel_;
  const std::size_t patch_;             // elements under one filter
  const std::size_t positions_;         // of the filter in one image
  std::vector<float> columns_;          // [batch, patch, positions] of the last forward()
  std::vector<float> column_gradient_;  // [patch, positions]
};

/// The largest of each 2x2 square, stride 2. Height and width must be even.
class MaxPool : public Layer {
 public:
  MaxPool(Shape input, std::size_t maximum_batch);
  void forward(std::span<const float> input, std::span<float> output) override;
  void backward_input(std::span<const float> output, std::span<const float> output_gradient,
                      std::span<float> input_gradient) override;

 private:
  std::vector<std::uint8_t> winner_;  // [batch, output]: 0..3, which of the four it was
};

/// max(x, 0).
class Relu : public Layer {
 public:
  explicit Relu(Shape shape) : Layer(shape, shape) {}
  void forward(std::span<const float> input, std::span<float> output) override;
  void backward_input(std::span<const float> output, std::span<const float> output_gradient,
                      std::span<float> input_gradient) override;
};

/// weight: [outputs, inputs], bias: [outputs].
class FullyConnected : public Layer {
 public:
  /// `gain`: variance of the weights times fan-in; 2 before a ReLU (He), 1 before the loss.
  FullyConnected(const std::string& name, Shape input, std::size_t outputs, double gain,
                 Random& random);
  void forward(std::span<const float> input, std::span<float> output) override;
  void backward_parameters(std::span<const float> input,
                           std::span<const float> output_gradient) override;
  void backward_input(std::span<const float> output, std::span<const float> output_gradient,
                      std::span<float> input_gradient) override;
};

/// Mean over the batch of the cross-entropy of softmax(logits) ([batch, classes]) against `labels`
/// ([batch]); overwrites `gradient` ([batch, classes]) with the gradient of that mean.
double softmax_cross_entropy(std::span<const float> logits, std::span<const std::uint8_t> labels,
                             std::span<float> gradient);

}  // namespace mnist
