#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "conformance/compressors_support.hpp"

namespace tersum::test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(Sign, GoldenPayload) {
  // Mean magnitude 2.5 = 0x40200000, the second and the fourth are negative.
  const auto sign = make_compressor("sign:block=32");
  const Bytes payload = encode(*sign, Floats{1.0f, -2.0f, 3.0f, -4.0f});
  EXPECT_EQ(payload, bytes({7,    0,    1,    0,    5,   0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0,  //
                            0x00, 0x00, 0x20, 0x40, 0x0a}));
  EXPECT_EQ(decode(*sign, payload, 4), (Floats{2.5f, -2.5f, 2.5f, -2.5f}));
}

TEST(Sign, MinusZeroCountsAsNegative) {
  const Floats output = round_trip(*make_compressor("sign"), Floats{0.0f, -0.0f, 2.0f, 2.0f});
  EXPECT_EQ(output, (Floats{1.0f, -1.0f, 1.0f, 1.0f}));
}

// ||C(x) - x||^2 = ||x||^2 - ||x||_1^2 / n in every block.
TEST(Sign, ErrorIsGivenByTheNormsOfTheBlock) {
  const Floats input = gaussian(256 * 5 + 77, 4);
  const auto sign = make_compressor("sign:block=256");
  const Floats output = round_trip(*sign, input);
  for (std::size_t first = 0; first < input.size(); first += 256) {
    const std::size_t count = std::min<std::size_t>(256, input.size() - first);
    const auto x = std::span(input).subspan(first, count);
    double one_norm = 0;
    for (const float value : x) one_norm += std::fabs(value);
    const double expected = squared_norm(x) - one_norm * one_norm / static_cast<double>(count);
    EXPECT_NEAR(squared_distance(std::span(output).subspan(first, count), x), expected,
                1e-5 * expected);
  }
}

// The sum's shape is part of the format: 32 lanes, then a halving tree.
TEST(Sign, ScaleIsTheMeanInTheDocumentedOrder) {
  for (const std::size_t count : {1u, 5u, 31u, 32u, 33u, 100u, 511u, 512u}) {
    Floats input = gaussian(count, 77);
    for (std::size_t i = 0; i < count; i += 3) input[i] *= 1e4f;  // makes the order visible
    float lanes[32] = {};
    for (std::size_t i = 0; i < count; ++i) lanes[i % 32] += std::fabs(input[i]);
    for (std::size_t half = 16; half > 0; half /= 2) {
      for (std::size_t l = 0; l < half; ++l) lanes[l] += lanes[l + half];
    }
    const float mean = lanes[0] / static_cast<float>(count);
    const Floats output = round_trip(*make_compressor("sign"), input);
    for (std::size_t i = 0; i < count; ++i) {
      ASSERT_EQ(output[i], std::copysign(mean, input[i])) << count;
    }
  }
}

TEST(Sign, ZeroBlockDecodesToZerosAndNonFiniteBlockToNan) {
  Floats input = gaussian(1536, 9);
  std::fill(input.begin(), input.begin() + 512, 0.0f);
  input[600] = -kInfinity;
  const Floats output = round_trip(*make_compressor("sign"), input);
  for (std::size_t i = 0; i < 512; ++i) ASSERT_EQ(output[i], 0.0f);
  for (std::size_t i = 512; i < 1024; ++i) ASSERT_TRUE(std::isnan(output[i]));
  for (std::size_t i = 1024; i < 1536; ++i) ASSERT_TRUE(std::isfinite(output[i]));
}

TEST(Sign, BlockWhoseSumOverflowsIsLoud) {
  const Floats output =
      round_trip(*make_compressor("sign"), Floats(8, std::numeric_limits<float>::max()));
  for (const float value : output) EXPECT_TRUE(std::isnan(value));
}

// Karimireddy et al.: on this problem plain scaled sign goes wrong and feedback repairs it. Sums of
// what arrives follow the sums of the gradients only with feedback.
TEST(Sign, FeedbackDeliversWhatTheSignAloneLoses) {
  const Floats gradient = {4.0f, -1.0f, -1.0f, 0.5f};
  for (const bool feedback : {false, true}) {
    const auto sign = make_compressor(feedback ? "sign+ef" : "sign");
    const auto state = sign->make_state(4);
    Floats received(4, 0.0f);
    constexpr int kSteps = 400;
    for (int step = 0; step < kSteps; ++step) {
      sign->decompress_add(encode(*sign, gradient, {}, state.get()), {}, 1.0f / kSteps, received);
      if (state) state->commit();
    }
    EXPECT_NEAR(squared_distance(received, gradient), 0.0, feedback ? 0.01 : 100.0);
    if (!feedback) {
      EXPECT_GT(squared_distance(received, gradient), 1.0);
    }
  }
}

}  // namespace
}  // namespace tersum::test
