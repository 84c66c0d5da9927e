#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "conformance/compressors_support.hpp"

namespace tersum::test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

TEST(QInt, GoldenPayloadOfFourBits) {
  // Scale 7 = 0x40e00000 and 7 levels: the codes are 7, -4 (-3.5 goes to even), 0, 1, -1.
  const Floats input = {7.0f, -3.5f, 0.0f, 1.0f, -1.0f};
  const auto qint = make_compressor("qint:bits=4,block=32");
  const Bytes payload = encode(*qint, input);
  EXPECT_EQ(payload, bytes({6,    0,    1,    4,    7,    0,    0,   0, 5, 0, 0, 0, 0, 0, 0, 0,  //
                            0x00, 0x00, 0xe0, 0x40, 0xc7, 0x10, 0x0f}));
  EXPECT_EQ(decode(*qint, payload, 5), (Floats{7.0f, -4.0f, 0.0f, 1.0f, -1.0f}));
}

TEST(QInt, GoldenPayloadOfThreeBits) {
  // Scale 3, 3 levels: codes 3, -3, 1, -1, 2, 0, -2, 1, -1 as 3-bit two's complement
  // 011 101 001 111 010 000 110 001 | 111, first code lowest:
  // bits 0..23 = 011 + 101<<3 + 001<<6 + 111<<9 + 010<<12 + 000<<15 + 110<<18 + 001<<21 = 0x382e6b.
  const Floats input = {3.0f, -3.0f, 1.0f, -1.0f, 2.0f, 0.0f, -2.0f, 1.0f, -1.0f};
  const Bytes payload = encode(*make_compressor("qint:bits=3,block=32"), input);
  EXPECT_EQ(payload,
            bytes({6,    0,    1,    3,    8,    0,    0,    0,   9, 0, 0, 0, 0, 0, 0, 0,  //
                   0x00, 0x00, 0x40, 0x40, 0x6b, 0x2e, 0x38, 0x07}));
}

TEST(QInt, ScalesOfAllBlocksComeBeforeTheCodes) {
  Floats input(40, 1.0f);
  for (std::size_t i = 32; i < 40; ++i) input[i] = -2.0f;
  const Bytes payload = encode(*make_compressor("qint:bits=8,block=32"), input);
  ASSERT_EQ(payload.size(), 16u + 2 * 4 + 40);
  EXPECT_EQ(Bytes(payload.begin() + 16, payload.begin() + 24),
            bytes({0, 0, 0x80, 0x3f, 0, 0, 0, 0x40}));
  EXPECT_EQ(payload[24], std::byte{127});
  EXPECT_EQ(payload[24 + 32], std::byte{0x81});
}

TEST(QInt, ErrorIsAtMostHalfALevelAndTheLargestElementIsExact) {
  const Floats input = gaussian(3000, 11);
  for (int bits = 2; bits <= 8; ++bits) {
    const auto qint = make_compressor("qint:block=64,bits=" + std::to_string(bits));
    const Floats output = round_trip(*qint, input);
    const float levels = static_cast<float>((1 << (bits - 1)) - 1);
    for (std::size_t first = 0; first < input.size(); first += 64) {
      const std::size_t end = std::min(first + 64, input.size());
      float scale = 0;
      for (std::size_t i = first; i < end; ++i) scale = std::max(scale, std::fabs(input[i]));
      for (std::size_t i = first; i < end; ++i) {
        const float bound = std::min(std::fabs(input[i]), scale / (2 * levels));
        ASSERT_LE(std::fabs(output[i] - input[i]), bound * 1.00001f + scale * 1e-6f);
        if (std::fabs(input[i]) == scale) {
          ASSERT_EQ(output[i], input[i]);
        }
      }
    }
  }
}

TEST(QInt, EncodingADecodedBlockAgainChangesNothing) {
  const Floats input = gaussian(2000, 5);
  for (int bits = 2; bits <= 8; ++bits) {
    const auto qint = make_compressor("qint:bits=" + std::to_string(bits));
    const Bytes once = encode(*qint, input);
    EXPECT_EQ(encode(*qint, decode(*qint, once, input.size())), once) << bits;
  }
}

TEST(QInt, ZeroBlockDecodesToZeros) {
  for (const char* spec : {"qint", "qint:rounding=stochastic"}) {
    Floats input(1024, 0.0f);
    input[700] = 1.0f;
    const Floats output = round_trip(*make_compressor(spec), input);
    for (std::size_t i = 0; i < 512; ++i) ASSERT_EQ(output[i], 0.0f);
    EXPECT_EQ(output[700], 1.0f);
  }
}

TEST(QInt, NonFiniteBlockDecodesToNanAndOthersStay) {
  for (const float bad : {kNan, kInfinity, -kInfinity}) {
    Floats input = gaussian(1536, 9);
    const auto qint = make_compressor("qint:bits=5");
    const Floats clean = round_trip(*qint, input);
    input[600] = bad;
    const Floats output = round_trip(*qint, input);
    for (std::size_t i = 0; i < 1536; ++i) {
      if (i / 512 == 1) {
        ASSERT_TRUE(std::isnan(output[i]));
      } else {
        ASSERT_EQ(output[i], clean[i]);
      }
    }
  }
}

TEST(QInt, ExtremeScalesNeitherOverflowNorVanish) {
  const float largest = std::numeric_limits<float>::max();
  const float smallest = std::numeric_limits<float>::denorm_min();
  for (const char* spec : {"qint:bits=8", "qint:bits=8,rounding=stochastic"}) {
    const auto qint = make_compressor(spec);
    EXPECT_EQ(round_trip(*qint, Floats{largest, -largest}), (Floats{largest, -largest}));
    EXPECT_EQ(round_trip(*qint, Floats{smallest, -smallest}), (Floats{smallest, -smallest}));
  }
}

// The exact variance of stochastic rounding: (s / L)^2 f (1 - f).
TEST(QInt, StochasticRoundingHasTheVarianceOfItsFraction) {
  const auto qint = make_compressor("qint:bits=4,block=32,rounding=stochastic");
  // Scale 7: a level is 1. Fractions 0, 1/4, 1/2, 0.9, and 0 below a negative number.
  const Floats input = {7.0f, 2.25f, -1.5f, 0.9f, -3.0f};
  const Floats fraction = {0.0f, 0.25f, 0.5f, 0.9f, 0.0f};
  constexpr int kTrials = 20000;
  std::vector<double> sum(input.size());
  std::vector<double> squares(input.size());
  for (int trial = 0; trial < kTrials; ++trial) {
    const Floats output = round_trip(*qint, input, {.step = static_cast<std::uint64_t>(trial)});
    for (std::size_t i = 0; i < input.size(); ++i) {
      const double error = output[i] - static_cast<double>(input[i]);
      sum[i] += error;
      squares[i] += error * error;
    }
  }
  for (std::size_t i = 0; i < input.size(); ++i) {
    const double variance = fraction[i] * (1.0 - fraction[i]);
    EXPECT_NEAR(sum[i] / kTrials, 0, 5 * std::sqrt(variance / kTrials) + 1e-4) << i;
    EXPECT_NEAR(squares[i] / kTrials, variance, 0.04 * variance + 1e-9) << i;
  }
}

TEST(QInt, RanksAndStepsDrawDifferently) {
  const auto qint = make_compressor("qint:bits=2,rounding=stochastic");
  const Floats input = gaussian(512, 2);
  const Bytes base = encode(*qint, input, {.seed = 1, .step = 2, .key = 3, .rank = 4});
  EXPECT_EQ(base, encode(*qint, input, {.seed = 1, .step = 2, .key = 3, .rank = 4}));
  EXPECT_NE(base, encode(*qint, input, {.seed = 9, .step = 2, .key = 3, .rank = 4}));
  EXPECT_NE(base, encode(*qint, input, {.seed = 1, .step = 9, .key = 3, .rank = 4}));
  EXPECT_NE(base, encode(*qint, input, {.seed = 1, .step = 2, .key = 9, .rank = 4}));
  EXPECT_NE(base, encode(*qint, input, {.seed = 1, .step = 2, .key = 3, .rank = 9}));
  EXPECT_NE(base, encode(*qint, input, {.seed = 1, .step = 2, .key = 3, .rank = kReducerRank}));
}

TEST(QInt, RefusesImpossibleScalesAndPadding) {
  const auto qint = make_compressor("qint:bits=4,block=32");
  const Bytes good = encode(*qint, Floats{1.0f, 2.0f, 3.0f});
  Bytes negative = good;
  negative[19] |= std::byte{0x80};
  EXPECT_THROW(decode(*qint, negative, 3), Error);
  Bytes infinite = good;
  infinite[18] = std::byte{0x80};
  infinite[19] = std::byte{0x7f};
  EXPECT_THROW(decode(*qint, infinite, 3), Error);
  Bytes padded = good;
  padded.back() |= std::byte{0x10};
  EXPECT_THROW(decode(*qint, padded, 3), Error);
  EXPECT_NO_THROW(decode(*qint, good, 3));
}

TEST(QInt, PayloadOfOtherBitsIsRefused) {
  // Three elements take two bytes with 4 and with 5 bits: only the flags tell them apart.
  const Bytes five = encode(*make_compressor("qint:bits=5,block=32"), Floats{1.0f, 2.0f, 3.0f});
  const auto four = make_compressor("qint:bits=4,block=32");
  try {
    decode(*four, five, 3);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::Protocol);
  }
}

TEST(QInt, ParametersOutOfRangeAreRefused) {
  for (const char* spec : {"qint:bits=1", "qint:bits=9", "qint:block=16", "qint:block=100",
                           "qint:block=131072", "qint:rounding=up", "qint:bits=4.5"}) {
    EXPECT_THROW(make_compressor(spec), Error) << spec;
  }
}

}  // namespace
}  // namespace tersum::test
