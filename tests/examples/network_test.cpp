#include "mnist/network.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "examples/reference_network.hpp"
#include "mnist/dataset.hpp"
#include "tersum/error.hpp"

namespace {

using mnist::Network;

struct Batch {
  explicit Batch(std::size_t count) : images(count * mnist::kImagePixels) {
    mnist::Random random(11, count);
    for (float& pixel : images) pixel = random.symmetric();
    for (std::size_t i = 0; i < count; ++i) {
      labels.push_back(static_cast<std::uint8_t>(random.below(mnist::kClasses)));
    }
  }
  std::vector<float> images;
  std::vector<std::uint8_t> labels;
};

TEST(Network, HasTheParametersOfLeNetInForwardOrder) {
  Network network(1, 1);
  EXPECT_EQ(network.parameters_count(), 431080u);
  const std::vector<std::pair<std::string, std::size_t>> expected{
      {"conv1.weight", 500},  {"conv1.bias", 20}, {"conv2.weight", 25000}, {"conv2.bias", 50},
      {"fc1.weight", 400000}, {"fc1.bias", 500},  {"fc2.weight", 5000},    {"fc2.bias", 10}};
  ASSERT_EQ(network.tensors(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(network.parameter(i).key, expected[i].first);
    EXPECT_EQ(network.parameter(i).value.size(), expected[i].second);
    EXPECT_EQ(network.parameter(i).gradient.size(), expected[i].second);
  }
}

TEST(Network, GradientsMatchCentralDifferencesOfTheWholeLoss) {
  Network network(2, 5);
  const Batch batch(2);
  network.forward(batch.images);
  const double loss = network.backward(batch.images, batch.labels);

  const reference::Values images = reference::widen(batch.images);
  std::vector<reference::Values> parameters;
  for (std::size_t p = 0; p < network.tensors(); ++p) {
    parameters.push_back(reference::widen(network.parameter(p).value));
  }
  const auto expected = [&] { return reference::network_loss(parameters, images, batch.labels); };
  EXPECT_NEAR(loss, expected(), 1e-5);
  mnist::Random random(13, 1);
  for (std::size_t p = 0; p < network.tensors(); ++p) {
    const std::vector<float>& gradient = network.parameter(p).gradient;
    // Where the gradient is largest, and at some other places.
    std::size_t largest = 0;
    for (std::size_t i = 0; i < gradient.size(); ++i) {
      if (std::abs(gradient[i]) > std::abs(gradient[largest])) largest = i;
    }
    EXPECT_GT(std::abs(gradient[largest]), 1e-3f) << network.parameter(p).key;
    for (const std::size_t i :
         {largest, random.below(gradient.size()), random.below(gradient.size())}) {
      EXPECT_NEAR(gradient[i], reference::central_difference(parameters[p][i], expected, 1e-6),
                  2e-5)
          << network.parameter(p).key << "[" << i << "]";
    }
  }
}

TEST(Network, AnnouncesParametersForwardsAndGradientsBackwards) {
  Network network(2, 1);
  const Batch batch(2);
  std::vector<std::size_t> used;
  std::vector<std::size_t> made;
  network.forward(batch.images, [&](std::size_t p) { used.push_back(p); });
  network.backward(batch.images, batch.labels, [&](std::size_t p) { made.push_back(p); });
  EXPECT_EQ(used, (std::vector<std::size_t>{0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(made, (std::vector<std::size_t>{7, 6, 5, 4, 3, 2, 1, 0}));
}

// The cross-barrier loop changes a parameter in the very call that announces its use.
TEST(Network, UsesWhatTheHookWrites) {
  Network changed(1, 1);
  Network plain(1, 1);
  const Batch batch(1);
  const auto change = [](Network& network, std::size_t p) {
    network.parameter(p).value[0] += 0.5f;
  };
  const std::span<const float> by_hook =
      changed.forward(batch.images, [&](std::size_t p) { change(changed, p); });
  for (std::size_t p = 0; p < plain.tensors(); ++p) change(plain, p);
  const std::span<const float> before = plain.forward(batch.images);
  EXPECT_EQ(std::vector<float>(by_hook.begin(), by_hook.end()),
            std::vector<float>(before.begin(), before.end()));
}

// A gradient that was announced is on its way to other ranks: nothing may write to it any more.
TEST(Network, LeavesAnnouncedGradientsAlone) {
  Network network(2, 1);
  const Batch batch(2);
  std::vector<std::vector<float>> announced(network.tensors());
  network.forward(batch.images);
  network.backward(batch.images, batch.labels,
                   [&](std::size_t p) { announced[p] = network.parameter(p).gradient; });
  for (std::size_t p = 0; p < network.tensors(); ++p) {
    EXPECT_EQ(announced[p], network.parameter(p).gradient) << network.parameter(p).key;
  }
}

TEST(Network, RepeatsBitForBitFromTheSameSeedOnly) {
  Network first(4, 1);
  Network second(4, 1);
  Network other(4, 2);
  EXPECT_EQ(first.parameters_hash(), second.parameters_hash());
  EXPECT_NE(first.parameters_hash(), other.parameters_hash());
  const Batch batch(4);
  for (Network* network : {&first, &second}) {
    network->forward(batch.images);
    network->backward(batch.images, batch.labels);
  }
  for (std::size_t p = 0; p < first.tensors(); ++p) {
    EXPECT_EQ(first.parameter(p).gradient, second.parameter(p).gradient);
  }
}

TEST(Network, StartsFromTheSameBitsOnEveryPlatform) {
  EXPECT_EQ(Network(1, 1).parameters_hash(), 4191208809846696140u);
}

TEST(Network, HashSeesEveryParameterAndEveryBit) {
  Network network(1, 1);
  const std::uint64_t before = network.parameters_hash();
  for (std::size_t p = 0; p < network.tensors(); ++p) {
    float& value = network.parameter(p).value.back();
    const float kept = value;
    value = std::nextafter(value, 1.0f);
    EXPECT_NE(network.parameters_hash(), before) << network.parameter(p).key;
    value = kept;
  }
  EXPECT_EQ(network.parameters_hash(), before);
}

TEST(Network, SmallerBatchGivesTheSameLogits) {
  Network network(3, 1);
  const Batch batch(3);
  const std::span<const float> all = network.forward(batch.images);
  const std::vector<float> expected(all.begin(), all.begin() + mnist::kClasses);
  const std::span<const float> one =
      network.forward(std::span(batch.images).first(mnist::kImagePixels));
  ASSERT_EQ(one.size(), mnist::kClasses);
  for (std::size_t i = 0; i < one.size(); ++i) EXPECT_NEAR(one[i], expected[i], 1e-5);
}

TEST(Network, RefusesABatchLargerThanItsBuffers) {
  Network network(1, 1);
  const Batch batch(2);
  EXPECT_THROW(network.forward(batch.images), tersum::Error);
}

TEST(CountCorrect, CountsRowsWithTheirLargestLogitAtTheLabel) {
  std::vector<float> logits(3 * 10, 0.0f);
  logits[4] = 1.0f;
  logits[10 + 9] = 1.0f;
  logits[20 + 1] = 1.0f;
  const std::vector<std::uint8_t> labels{4, 9, 2};
  EXPECT_EQ(mnist::count_correct(logits, labels), 2u);
}

}  // namespace
