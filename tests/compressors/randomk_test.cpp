#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "conformance/compressors_support.hpp"

namespace tersum::test {
namespace {

// The positions that are sent of `count` elements.
std::vector<std::size_t> positions(const Compressor& randomk, std::size_t count,
                                   const SliceContext& context) {
  const Floats output = round_trip(randomk, Floats(count, 1.0f), context);
  std::vector<std::size_t> result;
  for (std::size_t i = 0; i < count; ++i) {
    if (output[i] != 0.0f) result.push_back(i);
  }
  return result;
}

TEST(RandomK, GoldenPayload) {
  // Five of five: all values travel, in the order of the permutation, which is part of the format.
  const auto randomk = make_compressor("randomk:k=5");
  const SliceContext context{.seed = 1, .step = 2, .key = 3};
  const Bytes payload = encode(*randomk, Floats{1.0f, 2.0f, 3.0f, 4.0f, 5.0f}, context);
  EXPECT_EQ(Bytes(payload.begin(), payload.begin() + 16),
            bytes({5, 0, 1, 0, 20, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0}));
  Floats order(5);
  std::memcpy(order.data(), payload.data() + 16, 20);
  EXPECT_EQ(order, (Floats{5, 4, 2, 1, 3}));
  EXPECT_EQ(decode(*randomk, payload, 5, context), (Floats{1, 2, 3, 4, 5}));
}

TEST(RandomK, KeepsExactlyKElementsUnchanged) {
  for (const std::size_t count : {1u, 2u, 3u, 5u, 100u, 1023u, 1024u, 1025u, 70000u}) {
    for (const std::size_t k : {std::size_t{1}, (count + 2) / 3, count}) {
      const auto randomk = make_compressor("randomk:k=" + std::to_string(k));
      const Floats input = gaussian(count, 3);
      const Floats output = round_trip(*randomk, input, {.step = 5});
      std::size_t kept = 0;
      for (std::size_t i = 0; i < count; ++i) {
        if (output[i] == 0.0f) continue;
        ASSERT_EQ(output[i], input[i]);
        ++kept;
      }
      ASSERT_EQ(kept, k) << count;
    }
  }
}

TEST(RandomK, AllRanksChooseTheSameElements) {
  const auto randomk = make_compressor("randomk:ratio=0.1");
  const auto first = positions(*randomk, 1000, {.seed = 4, .step = 5, .key = 6, .rank = 0});
  EXPECT_EQ(first, positions(*randomk, 1000, {.seed = 4, .step = 5, .key = 6, .rank = 3}));
  EXPECT_NE(first, positions(*randomk, 1000, {.seed = 5, .step = 5, .key = 6}));
  EXPECT_NE(first, positions(*randomk, 1000, {.seed = 4, .step = 6, .key = 6}));
  EXPECT_NE(first, positions(*randomk, 1000, {.seed = 4, .step = 5, .key = 7}));
}

// Every element is as likely as any other: counts over many steps, chi-square with n - 1 degrees of
// freedom (sampling without replacement only makes it smaller). Bound: mean + 5 deviations.
TEST(RandomK, EveryElementIsEquallyLikely) {
  for (const std::size_t count : {3u, 5u, 10u, 37u, 100u, 1000u}) {
    const std::size_t k = (count + 3) / 4;
    const auto randomk = make_compressor("randomk:k=" + std::to_string(k));
    std::vector<double> hits(count);
    constexpr std::size_t kSteps = 4000;
    for (std::size_t step = 0; step < kSteps; ++step) {
      for (const std::size_t i : positions(*randomk, count, {.seed = 9, .step = step})) ++hits[i];
    }
    const double expected = static_cast<double>(kSteps * k) / static_cast<double>(count);
    double chi_square = 0;
    for (const double h : hits) chi_square += (h - expected) * (h - expected) / expected;
    const double freedom = static_cast<double>(count) - 1;
    EXPECT_LT(chi_square, freedom + 5 * std::sqrt(2 * freedom)) << count;
  }
}

// And every pair: a permutation that is only shifted from step to step would fail here.
TEST(RandomK, EveryPairIsEquallyLikely) {
  for (const std::size_t count : {4u, 5u, 7u, 12u, 33u}) {
    const auto randomk = make_compressor("randomk:k=2");
    std::vector<double> hits(count * count);
    constexpr std::size_t kSteps = 40000;
    for (std::size_t step = 0; step < kSteps; ++step) {
      const auto pair = positions(*randomk, count, {.seed = 10, .step = step});
      ++hits[pair[0] * count + pair[1]];
    }
    const double pairs = static_cast<double>(count * (count - 1) / 2);
    const double expected = kSteps / pairs;
    double chi_square = 0;
    for (std::size_t a = 0; a < count; ++a) {
      for (std::size_t b = a + 1; b < count; ++b) {
        chi_square += std::pow(hits[a * count + b] - expected, 2) / expected;
      }
    }
    EXPECT_LT(chi_square, pairs - 1 + 5 * std::sqrt(2 * (pairs - 1))) << count;
  }
}

TEST(RandomK, UnbiasedScaleMultipliesByCountOverK) {
  const Floats input = gaussian(900, 1);
  const auto plain = make_compressor("randomk:k=300");
  const auto scaled = make_compressor("randomk:k=300,scale=unbiased");
  const Floats expected = round_trip(*plain, input);
  const Floats output = round_trip(*scaled, input);
  for (std::size_t i = 0; i < input.size(); ++i) ASSERT_EQ(output[i], 3.0f * expected[i]);
  EXPECT_EQ(scaled->traits().bias, Bias::Unbiased);
  EXPECT_EQ(plain->traits().bias, Bias::Contractive);
}

TEST(RandomK, LosesItsShareOfTheNormOnAverage) {
  const Floats input = gaussian(500, 2);
  const auto randomk = make_compressor("randomk:ratio=0.2");
  double lost = 0;
  constexpr int kSteps = 2000;
  for (int step = 0; step < kSteps; ++step) {
    lost += squared_distance(
        round_trip(*randomk, input, {.step = static_cast<std::uint64_t>(step)}), input);
  }
  EXPECT_NEAR(lost / kSteps / squared_norm(input), 0.8, 0.005);
}

TEST(RandomK, FeedbackOnScaledValuesIsRefused) {
  try {
    make_compressor("randomk:scale=unbiased+ef");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::InvalidArgument);
    EXPECT_NE(error.status().message().find("without bound"), std::string::npos);
  }
  EXPECT_NO_THROW(make_compressor("randomk+ef"));
}

}  // namespace
}  // namespace tersum::test
