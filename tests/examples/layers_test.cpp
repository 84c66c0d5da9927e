// Every layer against plain loops in double precision: its outputs directly, its gradients by
// central differences of the loss  sum(output * sensitivity).
#include "mnist/layers.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <vector>

#include "examples/reference_network.hpp"

namespace {

using reference::Values;

std::vector<float> noise(std::size_t count, std::uint64_t stream) {
  mnist::Random random(7, stream);
  std::vector<float> values(count);
  for (float& value : values) value = random.symmetric();
  return values;
}

// One image's output by the reference, given its input and the layer's parameters.
using Reference = std::function<Values(const Values& input, const std::vector<Values>& parameters)>;

struct Check {
  mnist::Layer& layer;
  Reference reference;
  std::size_t batch;

  std::vector<float> input = noise(batch * layer.input_shape().count(), 1);
  std::vector<float> sensitivity = noise(batch * layer.output_shape().count(), 2);
  std::vector<float> output = std::vector<float>(sensitivity.size());
  std::vector<float> input_gradient = std::vector<float>(input.size(), 99.0f);

  void run() {
    for (std::size_t i = 0; i < layer.parameters().size(); ++i) {
      mnist::Parameter& parameter = layer.parameters()[i];
      parameter.value = noise(parameter.value.size(), 3 + i);
      std::fill(parameter.gradient.begin(), parameter.gradient.end(), 99.0f);  // overwritten?
    }
    layer.forward(input, output);
    layer.backward_parameters(input, sensitivity);
    layer.backward_input(output, sensitivity, input_gradient);
    compare_outputs();
    compare_gradients();
  }

  std::vector<Values> wide_parameters() {
    std::vector<Values> result;
    for (const mnist::Parameter& p : layer.parameters())
      result.push_back(reference::widen(p.value));
    return result;
  }

  Values wide_input(std::size_t image) {
    const std::size_t count = layer.input_shape().count();
    return reference::widen(std::span(input).subspan(image * count, count));
  }

  double loss(std::size_t image, const Values& x, const std::vector<Values>& parameters) {
    const Values y = reference(x, parameters);
    double sum = 0.0;
    for (std::size_t i = 0; i < y.size(); ++i) {
      sum += y[i] * static_cast<double>(sensitivity[image * y.size() + i]);
    }
    return sum;
  }

  void compare_outputs() {
    const std::vector<Values> parameters = wide_parameters();
    for (std::size_t n = 0; n < batch; ++n) {
      const Values expected = reference(wide_input(n), parameters);
      ASSERT_EQ(expected.size(), layer.output_shape().count());
      for (std::size_t i = 0; i < expected.size(); ++i) {
        ASSERT_NEAR(output[n * expected.size() + i], expected[i], 2e-5)
            << "image " << n << ", " << i;
      }
    }
  }

  void compare_gradients() {
    std::vector<Values> parameters = wide_parameters();
    for (std::size_t n = 0; n < batch; ++n) {
      Values x = wide_input(n);
      for (std::size_t i = 0; i < x.size(); ++i) {
        const double expected =
            reference::central_difference(x[i], [&] { return loss(n, x, parameters); });
        ASSERT_NEAR(input_gradient[n * x.size() + i], expected, 5e-5) << "input " << n << ", " << i;
      }
    }
    for (std::size_t p = 0; p < parameters.size(); ++p) {
      for (std::size_t i = 0; i < parameters[p].size(); ++i) {
        const double expected = reference::central_difference(parameters[p][i], [&] {
          double sum = 0.0;
          for (std::size_t n = 0; n < batch; ++n) sum += loss(n, wide_input(n), parameters);
          return sum;
        });
        ASSERT_NEAR(layer.parameters()[p].gradient[i], expected, 5e-5)
            << layer.parameters()[p].key << "[" << i << "]";
      }
    }
  }
};

TEST(Convolution, MatchesPlainLoopsAndTheirCentralDifferences) {
  mnist::Random random(1, 1);
  mnist::Convolution layer("conv", {3, 7, 7}, 4, 3, 2, random);
  Check{layer,
        [](const Values& x, const std::vector<Values>& p) {
          return reference::convolution(x, 3, 7, p[0], p[1], 3);
        },
        2}
      .run();
}

TEST(MaxPool, MatchesPlainLoopsAndTheirCentralDifferences) {
  mnist::MaxPool layer({3, 6, 6}, 2);
  Check{layer,
        [](const Values& x, const std::vector<Values>&) { return reference::max_pool(x, 3, 6); }, 2}
      .run();
}

TEST(MaxPool, SendsTheGradientOfATieToOneElementOnly) {
  mnist::MaxPool layer({1, 2, 2}, 1);
  const std::vector<float> input(4, 1.0f);
  const std::vector<float> sensitivity{2.0f};
  std::vector<float> output(1);
  std::vector<float> gradient(4, 99.0f);
  layer.forward(input, output);
  layer.backward_input(output, sensitivity, gradient);
  EXPECT_EQ(output, std::vector<float>{1.0f});
  EXPECT_EQ(gradient, (std::vector<float>{2.0f, 0.0f, 0.0f, 0.0f}));
}

TEST(Relu, MatchesPlainLoopsAndTheirCentralDifferences) {
  mnist::Relu layer({2, 3, 5});
  Check{layer, [](const Values& x, const std::vector<Values>&) { return reference::relu(x); }, 2}
      .run();
}

TEST(FullyConnected, MatchesPlainLoopsAndTheirCentralDifferences) {
  mnist::Random random(1, 1);
  mnist::FullyConnected layer("fc", {2, 3, 4}, 7, 2.0, random);
  Check{layer,
        [](const Values& x, const std::vector<Values>& p) {
          return reference::fully_connected(x, p[0], p[1]);
        },
        3}
      .run();
}

// Where the heap puts a buffer is chance: results that depend on it would not repeat.
struct Results {
  std::vector<float> output, input_gradient;
  std::vector<std::vector<float>> gradients;
  bool operator==(const Results&) const = default;
};

// All passes of a new layer, every buffer `shift` elements off its usual place.
template <typename Make>
Results run_shifted(const Make& make, std::size_t batch, std::size_t shift) {
  const auto layer = make();
  const auto shifted = [&](std::size_t count, std::uint64_t stream) {
    std::vector<float> buffer = noise(count, stream);
    buffer.insert(buffer.begin(), shift, 0.0f);
    return buffer;
  };
  std::vector<float> input = shifted(batch * layer->input_shape().count(), 1);
  std::vector<float> sensitivity = shifted(batch * layer->output_shape().count(), 2);
  std::vector<float> output(sensitivity.size());
  std::vector<float> input_gradient(input.size());
  const auto part = [&](std::vector<float>& buffer) { return std::span(buffer).subspan(shift); };
  layer->forward(part(input), part(output));
  layer->backward_parameters(part(input), part(sensitivity));
  layer->backward_input(part(output), part(sensitivity), part(input_gradient));
  Results results{
      {output.begin() + static_cast<std::ptrdiff_t>(shift), output.end()},
      {input_gradient.begin() + static_cast<std::ptrdiff_t>(shift), input_gradient.end()},
      {}};
  for (const mnist::Parameter& p : layer->parameters()) results.gradients.push_back(p.gradient);
  return results;
}

template <typename Make>
void expect_equal_at_all_alignments(const Make& make) {
  for (const std::size_t batch : {1u, 5u, 16u}) {
    const Results expected = run_shifted(make, batch, 0);
    for (std::size_t shift = 1; shift < 16; ++shift) {
      EXPECT_TRUE(run_shifted(make, batch, shift) == expected) << batch << ", " << shift;
    }
  }
}

TEST(Convolution, RepeatsBitForBitWhereverItsBuffersLie) {
  expect_equal_at_all_alignments([] {
    mnist::Random random(1, 1);
    return std::make_unique<mnist::Convolution>("c", mnist::Shape{4, 12, 12}, 20, 5, 16, random);
  });
}

TEST(FullyConnected, RepeatsBitForBitWhereverItsBuffersLie) {
  expect_equal_at_all_alignments([] {
    mnist::Random random(1, 1);
    return std::make_unique<mnist::FullyConnected>("f", mnist::Shape{300, 1, 1}, 50, 2.0, random);
  });
}

TEST(SoftmaxCrossEntropy, MatchesPlainLoopsAndTheirCentralDifferences) {
  const std::vector<float> logits = noise(3 * 10, 5);
  const std::vector<std::uint8_t> labels{0, 9, 4};
  std::vector<float> gradient(logits.size(), 99.0f);
  const double loss = mnist::softmax_cross_entropy(logits, labels, gradient);

  Values wide = reference::widen(logits);
  const auto expected = [&] {
    double sum = 0.0;
    for (std::size_t n = 0; n < 3; ++n) {
      const auto begin = wide.begin() + static_cast<std::ptrdiff_t>(n * 10);
      sum += reference::cross_entropy(Values(begin, begin + 10), labels[n]);
    }
    return sum / 3.0;
  };
  EXPECT_NEAR(loss, expected(), 1e-6);
  for (std::size_t i = 0; i < wide.size(); ++i) {
    EXPECT_NEAR(gradient[i], reference::central_difference(wide[i], expected), 1e-6) << i;
  }
}

TEST(SoftmaxCrossEntropy, StaysFiniteForHugeLogits) {
  const std::vector<float> logits{1e4f, -1e4f, 0.0f};
  const std::vector<std::uint8_t> labels{1};
  std::vector<float> gradient(3);
  EXPECT_DOUBLE_EQ(mnist::softmax_cross_entropy(logits, labels, gradient), 2e4);
  EXPECT_EQ(gradient, (std::vector<float>{1.0f, -1.0f, 0.0f}));
}

// Variance of uniform weights in ±limit is limit² / 3.
double variance(const std::vector<float>& values) {
  double sum = 0.0;
  for (const float value : values) sum += static_cast<double>(value) * static_cast<double>(value);
  return sum / static_cast<double>(values.size());
}

TEST(Initialisation, HasTheVarianceThatKeepsActivationsInScale) {
  mnist::Random random(3, 1);
  mnist::Convolution convolution("conv", {20, 12, 12}, 50, 5, 1, random);
  mnist::FullyConnected hidden("fc1", {800, 1, 1}, 500, 2.0, random);
  mnist::FullyConnected last("fc2", {500, 1, 1}, 100, 1.0, random);
  EXPECT_NEAR(variance(convolution.parameters()[0].value) * 500, 2.0, 0.06);
  EXPECT_NEAR(variance(hidden.parameters()[0].value) * 800, 2.0, 0.03);
  EXPECT_NEAR(variance(last.parameters()[0].value) * 500, 1.0, 0.03);
  for (const float value : hidden.parameters()[1].value) EXPECT_EQ(value, 0.0f);
}

}  // namespace
