#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>

#include "conformance/compressors_support.hpp"

namespace tersum::test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Sorting by (magnitude bits descending, index ascending) and taking k: the definition.
Floats reference(const Floats& input, std::size_t k) {
  std::vector<std::size_t> order(input.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto raw = bits(input);
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return (raw[a] & 0x7fffffffu) > (raw[b] & 0x7fffffffu);
  });
  Floats output(input.size(), 0.0f);
  for (std::size_t i = 0; i < k; ++i) output[order[i]] = input[order[i]];
  return output;
}

Floats top(const Floats& input, std::size_t k) {
  return round_trip(*make_compressor("topk:k=" + std::to_string(k)), input);
}

TEST(TopK, GoldenPayload) {
  // Kept: 5 = 0x40a00000 at 1 and -9 = 0xc1100000 at 4. Two low bits each: 01, 00. High parts 0 and
  // 1: bits 0 + 0 and 1 + 1 of three.
  const Floats input = {0.0f, 5.0f, -1.0f, 0.0f, -9.0f, 2.0f, 0.0f, 0.0f};
  const auto topk = make_compressor("topk:k=2");
  const Bytes payload = encode(*topk, input);
  EXPECT_EQ(payload,
            bytes({4,    0,    1,    0,    10,   0,    0,    0,    8,    0,   0, 0, 0, 0, 0, 0,  //
                   0x00, 0x00, 0xa0, 0x40, 0x00, 0x00, 0x10, 0xc1, 0x01, 0x05}));
  EXPECT_EQ(decode(*topk, payload, 8), (Floats{0, 5, 0, 0, -9, 0, 0, 0}));
}

TEST(TopK, KeepsLargestMagnitudes) {
  for (const std::size_t count : {1u, 2u, 7u, 100u, 4095u, 4096u, 4097u, 20000u}) {
    const Floats input = gaussian(count, static_cast<unsigned>(count));
    for (const std::size_t k : {std::size_t{1}, count / 100 + 1, count / 3 + 1, count}) {
      ASSERT_EQ(bits(top(input, k)), bits(reference(input, k))) << count << " " << k;
    }
  }
}

TEST(TopK, LowestIndexWinsTies) {
  EXPECT_EQ(top({2, -2, 2, 3, -2}, 3), (Floats{2, -2, 0, 3, 0}));
  EXPECT_EQ(top(Floats(10, -1.0f), 4), reference(Floats(10, -1.0f), 4));
  Floats many(30000);
  std::mt19937 generator(1);
  for (float& x : many) x = static_cast<float>(static_cast<int>(generator() % 7) - 3);
  for (const std::size_t k : {1u, 1000u, 12345u, 29999u}) {
    ASSERT_EQ(bits(top(many, k)), bits(reference(many, k))) << k;
  }
}

// Magnitudes that share their upper bits, so that every level of the selection decides.
TEST(TopK, TellsNeighbouringFloatsApart) {
  Floats input(5000);
  std::mt19937 generator(2);
  for (float& x : input) {
    const auto offset = static_cast<std::uint32_t>(generator() % 3000);
    x = std::bit_cast<float>(0x3f800000u + offset) * (generator() % 2 == 0 ? 1.0f : -1.0f);
  }
  for (const std::size_t k : {1u, 50u, 2500u, 4999u}) {
    ASSERT_EQ(bits(top(input, k)), bits(reference(input, k))) << k;
  }
}

// The sample that guesses a threshold sees every 8th element (or fewer): here it sees none of the
// large ones, or only large ones.
TEST(TopK, IsExactWhateverASampleWouldShow) {
  for (const bool sample_is_large : {false, true}) {
    Floats input = gaussian(8192, 12);
    for (std::size_t i = 0; i < input.size(); ++i) {
      if ((i % 8 == 0) == sample_is_large) input[i] *= 1000.0f;
    }
    for (const std::size_t k : {1u, 10u, 82u, 500u, 1024u, 1500u, 7000u}) {
      ASSERT_EQ(bits(top(input, k)), bits(reference(input, k))) << k;
    }
  }
}

TEST(TopK, SubnormalsAndZerosAreOrderedToo) {
  Floats input = {0.0f, -0.0f, 1e-45f, -3e-45f, 0.0f, 1e-40f};
  EXPECT_EQ(bits(top(input, 3)), bits(Floats{0, 0, 1e-45f, -3e-45f, 0, 1e-40f}));
  EXPECT_EQ(bits(top(input, 5)), bits(Floats{0, -0.0f, 1e-45f, -3e-45f, 0, 1e-40f}));
}

TEST(TopK, NonFiniteElementsGoFirst) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const Floats output = top({1e38f, nan, kInfinity, 5.0f, -kInfinity}, 3);
  EXPECT_TRUE(std::isnan(output[1]));
  EXPECT_EQ(output[2], kInfinity);
  EXPECT_EQ(output[4], -kInfinity);
  EXPECT_EQ(output[0], 0.0f);
}

TEST(TopK, RatioIsRoundedHalfUpToAtLeastOne) {
  const auto kept = [](const char* spec, std::size_t count) {
    const auto topk = make_compressor(spec);
    const Floats output = round_trip(*topk, Floats(count, 1.0f));
    return std::count(output.begin(), output.end(), 1.0f);
  };
  EXPECT_EQ(kept("topk:ratio=0.25", 10), 3);  // 2.5
  EXPECT_EQ(kept("topk:ratio=0.25", 9), 2);   // 2.25
  EXPECT_EQ(kept("topk:ratio=0.001", 10), 1);
  EXPECT_EQ(kept("topk:ratio=1", 10), 10);
  EXPECT_EQ(kept("topk:k=20", 10), 10);
  EXPECT_EQ(kept("topk:k=20", 0), 0);
}

TEST(TopK, CostsAboutFiveBytesPerElementAtOnePercent) {
  const double bytes = static_cast<double>(make_compressor("topk")->max_payload_bytes(1'000'000));
  EXPECT_NEAR(bytes / 10'000, 5.1, 0.05);
}

TEST(TopK, KeepsAtLeastItsShareOfTheNorm) {
  const Floats input = gaussian(10000, 8);
  for (const double ratio : {0.01, 0.1, 0.5}) {
    const Floats output =
        round_trip(*make_compressor("topk:ratio=" + std::to_string(ratio)), input);
    EXPECT_LE(squared_distance(output, input), (1 - ratio) * squared_norm(input));
  }
}

TEST(TopK, CompressingTwiceChangesNothing) {
  const auto topk = make_compressor("topk:ratio=0.05");
  const Bytes once = encode(*topk, gaussian(3000, 6));
  EXPECT_EQ(encode(*topk, decode(*topk, once, 3000)), once);
}

TEST(TopK, RatioAndKTogetherAreRefused) {
  try {
    make_compressor("topk:ratio=0.5,k=3");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::InvalidArgument);
    EXPECT_NE(error.status().message().find("ratio and k"), std::string::npos);
  }
}

}  // namespace
}  // namespace tersum::test
