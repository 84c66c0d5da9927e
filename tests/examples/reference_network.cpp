#include "examples/reference_network.hpp"

#include <algorithm>
#include <cmath>

namespace reference {

Values widen(std::span<const float> values) {
  return {values.begin(), values.end()};
}

Values convolution(const Values& input, std::size_t channels, std::size_t side,
                   const Values& weight, const Values& bias, std::size_t kernel) {
  const std::size_t out = side - kernel + 1;
  Values output;
  for (std::size_t f = 0; f < bias.size(); ++f) {
    for (std::size_t row = 0; row < out; ++row) {
      for (std::size_t column = 0; column < out; ++column) {
        double sum = bias[f];
        for (std::size_t c = 0; c < channels; ++c) {
          for (std::size_t y = 0; y < kernel; ++y) {
            for (std::size_t x = 0; x < kernel; ++x) {
              sum += weight[((f * channels + c) * kernel + y) * kernel + x] *
                     input[(c * side + row + y) * side + column + x];
            }
          }
        }
        output.push_back(sum);
      }
    }
  }
  return output;
}

Values max_pool(const Values& input, std::size_t channels, std::size_t side) {
  Values output;
  for (std::size_t c = 0; c < channels; ++c) {
    for (std::size_t row = 0; row < side; row += 2) {
      for (std::size_t column = 0; column < side; column += 2) {
        const auto at = [&](std::size_t y, std::size_t x) {
          return input[(c * side + row + y) * side + column + x];
        };
        output.push_back(std::max({at(0, 0), at(0, 1), at(1, 0), at(1, 1)}));
      }
    }
  }
  return output;
}

Values relu(Values input) {
  for (double& value : input) value = std::max(value, 0.0);
  return input;
}

Values fully_connected(const Values& input, const Values& weight, const Values& bias) {
  Values output = bias;
  for (std::size_t o = 0; o < output.size(); ++o) {
    for (std::size_t i = 0; i < input.size(); ++i)
      output[o] += weight[o * input.size() + i] * input[i];
  }
  return output;
}

double cross_entropy(const Values& logits, std::size_t label) {
  double sum = 0.0;
  for (const double logit : logits) sum += std::exp(logit);
  return std::log(sum) - logits[label];
}

double network_loss(const std::vector<Values>& parameters, const Values& images,
                    std::span<const std::uint8_t> labels) {
  double loss = 0.0;
  for (std::size_t n = 0; n < labels.size(); ++n) {
    const auto begin = images.begin() + static_cast<std::ptrdiff_t>(n * 784);
    Values x(begin, begin + 784);
    x = relu(max_pool(convolution(x, 1, 28, parameters[0], parameters[1], 5), 20, 24));
    x = relu(max_pool(convolution(x, 20, 12, parameters[2], parameters[3], 5), 50, 8));
    x = relu(fully_connected(x, parameters[4], parameters[5]));
    loss += cross_entropy(fully_connected(x, parameters[6], parameters[7]), labels[n]);
  }
  return loss / static_cast<double>(labels.size());
}

double central_difference(double& value, const std::function<double()>& f, double h) {
  const double middle = value;
  value = middle + h;
  const double above = f();
  value = middle - h;
  const double below = f();
  value = middle;
  return (above - below) / (2.0 * h);
}

}  // namespace reference
