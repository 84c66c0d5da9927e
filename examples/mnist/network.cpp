#include "mnist/network.hpp"

#include <algorithm>
#include <bit>
#include <numeric>
#include <string>

#include "mnist/dataset.hpp"
#include "tersum/error.hpp"

namespace mnist {

Network::Network(std::size_t maximum_batch, std::uint64_t seed) : maximum_batch_(maximum_batch) {
  // The streams of epoch_order() are epochs; the last one is far from all of them.
  Random random(seed, ~std::uint64_t{0});
  Shape shape{1, kImageSide, kImageSide};
  auto add = [&](std::unique_ptr<Layer> layer) {
    shape = layer->output_shape();
    outputs_.emplace_back(maximum_batch * shape.count());
    output_gradients_.emplace_back(maximum_batch * shape.count());
    first_parameter_.push_back(parameters_.size());
    for (Parameter& parameter : layer->parameters()) parameters_.push_back(&parameter);
    layers_.push_back(std::move(layer));
  };
  add(std::make_unique<Convolution>("conv1", shape, 20, 5, maximum_batch, random));
  add(std::make_unique<MaxPool>(shape, maximum_batch));
  add(std::make_unique<Relu>(shape));
  add(std::make_unique<Convolution>("conv2", shape, 50, 5, maximum_batch, random));
  add(std::make_unique<MaxPool>(shape, maximum_batch));
  add(std::make_unique<Relu>(shape));
  add(std::make_unique<FullyConnected>("fc1", shape, 500, 2.0, random));
  add(std::make_unique<Relu>(shape));
  add(std::make_unique<FullyConnected>("fc2", shape, kClasses, 1.0, random));
}

std::size_t Network::parameters_count() const noexcept {
  return std::accumulate(
      parameters_.begin(), parameters_.end(), std::size_t{0},
      [](std::size_t sum, const Parameter* parameter) { return sum + parameter->value.size(); });
}

std::uint64_t Network::parameters_hash() const noexcept {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const Parameter* parameter : parameters_) {
    for (const float value : parameter->value) {
      hash = (hash ^ std::bit_cast<std::uint32_t>(value)) * 0x100000001b3u;
    }
  }
  return hash;
}

std::span<const float> Network::input_of(std::size_t layer, std::span<const float> images) const {
  if (layer == 0) return images;
  const std::size_t batch = images.size() / kImagePixels;
  return std::span(outputs_[layer - 1]).first(batch * layers_[layer]->input_shape().count());
}

std::span<const float> Network::forward(std::span<const float> images, const Hook& before_use) {
  const std::size_t batch = images.size() / kImagePixels;
  if (batch > maximum_batch_) {
    throw tersum::Error(tersum::Code::InvalidArgument, "a batch of " + std::to_string(batch) +
                                                           " in a network made for " +
                                                           std::to_string(maximum_batch_));
  }
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    Layer& layer = *layers_[i];
    if (before_use) {
      for (std::size_t p = 0; p < layer.parameters().size(); ++p) {
        before_use(first_parameter_[i] + p);
      }
    }
    layer.forward(input_of(i, images),
                  std::span(outputs_[i]).first(batch * layer.output_shape().count()));
  }
  return std::span(outputs_.back()).first(batch * kClasses);
}

double Network::backward(std::span<const float> images, std::span<const std::uint8_t> labels,
                         const Hook& after_gradient) {
  const std::size_t batch = labels.size();
  const double loss =
      softmax_cross_entropy(std::span(outputs_.back()).first(batch * kClasses), labels,
                            std::span(output_gradients_.back()).first(batch * kClasses));
  for (std::size_t i = layers_.size(); i-- > 0;) {
    Layer& layer = *layers_[i];
    const std::size_t output_count = batch * layer.output_shape().count();
    const std::span<const float> delta = std::span(output_gradients_[i]).first(output_count);
    layer.backward_parameters(input_of(i, images), delta);
    if (after_gradient) {
      for (std::size_t p = layer.parameters().size(); p-- > 0;) {
        after_gradient(first_parameter_[i] + p);
      }
    }
    if (i == 0) break;  // nobody needs the gradient of the images
    layer.backward_input(
        std::span(outputs_[i]).first(output_count), delta,
        std::span(output_gradients_[i - 1]).first(batch * layer.input_shape().count()));
  }
  return loss;
}

std::size_t count_correct(std::span<const float> logits, std::span<const std::uint8_t> labels) {
  std::size_t correct = 0;
  for (std::size_t n = 0; n < labels.size(); ++n) {
    const auto row = logits.subspan(n * kClasses, kClasses);
    const auto best = std::max_element(row.begin(), row.end()) - row.begin();
    correct += static_cast<std::size_t>(best) == labels[n] ? 1 : 0;
  }
  return correct;
}

}  // namespace mnist
