#include "mnist/layers.hpp"

#include <Eigen/Core>
#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>

namespace mnist {
namespace {

using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using MatrixView = Eigen::Map<Matrix>;
using ConstMatrixView = Eigen::Map<const Matrix>;

MatrixView view(float* data, std::size_t rows, std::size_t columns) {
  return {data, static_cast<Eigen::Index>(rows), static_cast<Eigen::Index>(columns)};
}

ConstMatrixView view(const float* data, std::size_t rows, std::size_t columns) {
  return {data, static_cast<Eigen::Index>(rows), static_cast<Eigen::Index>(columns)};
}

// Eigen's own sums begin where memory is aligned, so that their rounding would depend on where a
// buffer happens to lie. This order is always the same, and still one vector wide.
float sum(const float* values, std::size_t count) {
  constexpr std::size_t kLanes = 16;
  float lanes[kLanes] = {};
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) lanes[lane] += values[i + lane];
  }
  for (std::size_t lane = 0; i < count; ++i, ++lane) lanes[lane] += values[i];
  return std::accumulate(std::begin(lanes), std::end(lanes), 0.0f);
}

}  // namespace

void Layer::make_parameters(const std::string& name, std::size_t weights, std::size_t biases,
                            double limit, Random& random) {
  parameters_.push_back(
      {name + ".weight", std::vector<float>(weights), std::vector<float>(weights)});
  parameters_.push_back({name + ".bias", std::vector<float>(biases), std::vector<float>(biases)});
  const float scale = static_cast<float>(limit);
  for (float& value : weight().value) value = scale * random.symmetric();
}

Convolution::Convolution(const std::string& name, Shape input, std::size_t filters,
                         std::size_t kernel, std::size_t maximum_batch, Random& random)
    : Layer(input, {filters, input.height - kernel + 1, input.width - kernel + 1}),
      kernel_(kernel),
      patch_(input.channels * kernel * kernel),
      positions_(output_.height * output_.width),
      columns_(maximum_batch * patch_ * positions_),
      column_gradient_(patch_ * positions_) {
  // A uniform value in ±limit has variance limit² / 3.
  make_parameters(name, filters * patch_, filters, std::sqrt(6.0 / static_cast<double>(patch_)),
                  random);
}

// Row (channel, y, x) of the columns is what the filter element (channel, y, x) meets as the filter
// walks over the image.
void Convolution::gather(const float* image, float* columns) const {
  for (std::size_t channel = 0; channel < input_.channels; ++channel) {
    const float* plane = image + channel * input_.height * input_.width;
    for (std::size_t y = 0; y < kernel_; ++y) {
      for (std::size_t x = 0; x < kernel_; ++x) {
        for (std::size_t row = 0; row < output_.height; ++row) {
          columns = std::copy_n(plane + (row + y) * input_.width + x, output_.width, columns);
        }
      }
    }
  }
}

void Convolution::scatter_add(const float* columns, float* image) const {
  for (std::size_t channel = 0; channel < input_.channels; ++channel) {
    float* plane = image + channel * input_.height * input_.width;
    for (std::size_t y = 0; y < kernel_; ++y) {
      for (std::size_t x = 0; x < kernel_; ++x) {
        for (std::size_t row = 0; row < output_.height; ++row) {
          float* target = plane + (row + y) * input_.width + x;
          for (std::size_t i = 0; i < output_.width; ++i) target[i] += columns[i];
          columns += output_.width;
        }
      }
    }
  }
}

void Convolution::forward(std::span<const float> input, std::span<float> output) {
  const std::size_t batch = input.size() / input_.count();
  const std::size_t filters = output_.channels;
  const MatrixView weights = view(weight().value.data(), filters, patch_);
  const MatrixView biases = view(bias().value.data(), filters, 1);
  for (std::size_t n = 0; n < batch; ++n) {
    float* columns = columns_.data() + n * patch_ * positions_;
    gather(input.data() + n * input_.count(), columns);
    MatrixView result = view(output.data() + n * output_.count(), filters, positions_);
    result.noalias() = weights * view(columns, patch_, positions_);
    result.colwise() += biases.col(0);
  }
}

void Convolution::backward_parameters(std::span<const float> input,
                                      std::span<const float> output_gradient) {
  const std::size_t batch = input.size() / input_.count();
  const std::size_t filters = output_.channels;
  MatrixView weights = view(weight().gradient.data(), filters, patch_);
  std::vector<float>& biases = bias().gradient;
  weights.setZero();
  std::fill(biases.begin(), biases.end(), 0.0f);
  for (std::size_t n = 0; n < batch; ++n) {
    const float* columns = columns_.data() + n * patch_ * positions_;
    const float* delta = output_gradient.data() + n * output_.count();
    weights.noalias() +=
        view(delta, filters, positions_) * view(columns, patch_, positions_).transpose();
    for (std::size_t f = 0; f < filters; ++f) biases[f] += sum(delta + f * positions_, positions_);
  }
}

void Convolution::backward_input(std::span<const float>, std::span<const float> output_gradient,
                                 std::span<float> input_gradient) {
  const std::size_t batch = input_gradient.size() / input_.count();
  const std::size_t filters = output_.channels;
  const MatrixView weights = view(weight().value.data(), filters, patch_);
  MatrixView columns = view(column_gradient_.data(), patch_, positions_);
  std::fill(input_gradient.begin(), input_gradient.end(), 0.0f);
  for (std::size_t n = 0; n < batch; ++n) {
    columns.noalias() = weights.transpose() *
                        view(output_gradient.data() + n * output_.count(), filters, positions_);
    scatter_add(column_gradient_.data(), input_gradient.data() + n * input_.count());
  }
}

MaxPool::MaxPool(Shape input, std::size_t maximum_batch)
    : Layer(input, {input.channels, input.height / 2, input.width / 2}),
      winner_(maximum_batch * output_.count()) {}

void MaxPool::forward(std::span<const float> input, std::span<float> output) {
  const std::size_t rows = output.size() / output_.width;  // of all planes of all images
  float* result = output.data();
  std::uint8_t* winner = winner_.data();
  for (std::size_t row = 0; row < rows; ++row) {
    const float* upper = input.data() + row * 2 * input_.width;
    const float* lower = upper + input_.width;
    for (std::size_t x = 0; x < output_.width; ++x) {
      const float candidates[] = {upper[2 * x], upper[2 * x + 1], lower[2 * x], lower[2 * x + 1]};
      float best = candidates[0];
      std::uint8_t which = 0;
      for (std::uint8_t i = 1; i < 4; ++i) {
        which = candidates[i] > best ? i : which;
        best = candidates[i] > best ? candidates[i] : best;
      }
      *result++ = best;
      *winner++ = which;
    }
  }
}

void MaxPool::backward_input(std::span<const float>, std::span<const float> output_gradient,
                             std::span<float> input_gradient) {
  const std::size_t rows = output_gradient.size() / output_.width;
  const float* delta = output_gradient.data();
  const std::uint8_t* winner = winner_.data();
  for (std::size_t row = 0; row < rows; ++row) {
    float* upper = input_gradient.data() + row * 2 * input_.width;
    float* lower = upper + input_.width;
    for (std::size_t x = 0; x < output_.width; ++x, ++delta, ++winner) {
      upper[2 * x] = *winner == 0 ? *delta : 0.0f;
      upper[2 * x + 1] = *winner == 1 ? *delta : 0.0f;
      lower[2 * x] = *winner == 2 ? *delta : 0.0f;
      lower[2 * x + 1] = *winner == 3 ? *delta : 0.0f;
    }
  }
}

void Relu::forward(std::span<const float> input, std::span<float> output) {
  for (std::size_t i = 0; i < input.size(); ++i) output[i] = input[i] > 0.0f ? input[i] : 0.0f;
}

void Relu::backward_input(std::span<const float> output, std::span<const float> output_gradient,
                          std::span<float> input_gradient) {
  for (std::size_t i = 0; i < output.size(); ++i) {
    input_gradient[i] = output[i] > 0.0f ? output_gradient[i] : 0.0f;
  }
}

FullyConnected::FullyConnected(const std::string& name, Shape input, std::size_t outputs,
                               double gain, Random& random)
    : Layer(input, {outputs, 1, 1}) {
  make_parameters(name, outputs * input.count(), outputs,
                  std::sqrt(3.0 * gain / static_cast<double>(input.count())), random);
}

void FullyConnected::forward(std::span<const float> input, std::span<float> output) {
  const std::size_t inputs = input_.count();
  const std::size_t outputs = output_.count();
  const std::size_t batch = input.size() / inputs;
  MatrixView result = view(output.data(), batch, outputs);
  result.noalias() =
      view(input.data(), batch, inputs) * view(weight().value.data(), outputs, inputs).transpose();
  result.rowwise() += view(bias().value.data(), 1, outputs).row(0);
}

void FullyConnected::backward_parameters(std::span<const float> input,
                                         std::span<const float> output_gradient) {
  const std::size_t inputs = input_.count();
  const std::size_t outputs = output_.count();
  const std::size_t batch = input.size() / inputs;
  view(weight().gradient.data(), outputs, inputs).noalias() =
      view(output_gradient.data(), batch, outputs).transpose() * view(input.data(), batch, inputs);
  std::vector<float>& biases = bias().gradient;
  std::fill(biases.begin(), biases.end(), 0.0f);
  for (std::size_t n = 0; n < batch; ++n) {
    const float* delta = output_gradient.data() + n * outputs;
    for (std::size_t o = 0; o < outputs; ++o) biases[o] += delta[o];
  }
}

void FullyConnected::backward_input(std::span<const float>, std::span<const float> output_gradient,
                                    std::span<float> input_gradient) {
  const std::size_t inputs = input_.count();
  const std::size_t outputs = output_.count();
  const std::size_t batch = input_gradient.size() / inputs;
  view(input_gradient.data(), batch, inputs).noalias() =
      view(output_gradient.data(), batch, outputs) * view(weight().value.data(), outputs, inputs);
}

double softmax_cross_entropy(std::span<const float> logits, std::span<const std::uint8_t> labels,
                             std::span<float> gradient) {
  const std::size_t batch = labels.size();
  const std::size_t classes = logits.size() / batch;
  double loss = 0.0;
  for (std::size_t n = 0; n < batch; ++n) {
    const std::span<const float> row = logits.subspan(n * classes, classes);
    const std::span<float> delta = gradient.subspan(n * classes, classes);
    // Shifting by the largest logit changes nothing and keeps exp() from overflowing.
    const float largest = *std::max_element(row.begin(), row.end());
    double sum = 0.0;
    for (std::size_t i = 0; i < classes; ++i) {
      delta[i] = std::exp(row[i] - largest);
      sum += delta[i];
    }
    for (std::size_t i = 0; i < classes; ++i) {
      const double target = i == labels[n] ? 1.0 : 0.0;
      delta[i] = static_cast<float>((delta[i] / sum - target) / static_cast<double>(batch));
    }
    loss += std::log(sum) - static_cast<double>(row[labels[n]] - largest);
  }
  return loss / static_cast<double>(batch);
}

}  // namespace mnist
