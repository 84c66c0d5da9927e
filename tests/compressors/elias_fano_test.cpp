#include "compressors/elias_fano.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "conformance/compressors_support.hpp"

namespace tersum::test {
namespace {

using compressors::EliasFanoLayout;
using compressors::EliasFanoReader;
using compressors::EliasFanoWriter;
using compressors::valid_elias_fano;

Bytes code(std::size_t count, const std::vector<std::size_t>& indices) {
  const EliasFanoLayout layout(count, indices.size());
  Bytes out(layout.bytes(), std::byte{0xff});  // the writer must overwrite everything
  EliasFanoWriter writer(layout, out.data());
  for (const std::size_t index : indices) writer.put(index);
  writer.finish();
  return out;
}

TEST(EliasFano, GoldenBytes) {
  // n = 20, k = 3: floor(log2(6)) = 2 low bits. 3, 7, 18 -> low 11 11 10, high 0 1 4 -> bits 0,
  // 2, 6.
  EXPECT_EQ(code(20, {3, 7, 18}), bytes({0b101111, 0b1000101}));
}

TEST(EliasFano, GivesBackWhatWasPut) {
  std::mt19937_64 generator(5);
  for (const std::size_t count : {1u, 2u, 9u, 64u, 65u, 1000u, 100000u}) {
    for (const double density : {0.0, 0.001, 0.03, 0.5, 0.97, 1.0}) {
      std::vector<std::size_t> indices;
      for (std::size_t i = 0; i < count; ++i) {
        if (static_cast<double>(generator() >> 11) * 0x1p-53 < density) indices.push_back(i);
      }
      const EliasFanoLayout layout(count, indices.size());
      const Bytes coded = code(count, indices);
      ASSERT_TRUE(valid_elias_fano(layout, coded));
      EliasFanoReader reader(layout, coded);
      for (const std::size_t index : indices) ASSERT_EQ(reader.next(), index);
    }
  }
}

TEST(EliasFano, FirstAndLastPositionsFitAlways) {
  for (std::size_t count = 1; count < 70; ++count) {
    for (std::size_t kept = 1; kept <= count; ++kept) {
      std::vector<std::size_t> head(kept);
      std::iota(head.begin(), head.end(), std::size_t{0});
      std::vector<std::size_t> tail(kept);
      std::iota(tail.begin(), tail.end(), count - kept);
      const EliasFanoLayout layout(count, kept);
      ASSERT_TRUE(valid_elias_fano(layout, code(count, head)));
      ASSERT_TRUE(valid_elias_fano(layout, code(count, tail)));
    }
  }
}

TEST(EliasFano, IsWithinAQuarterOfTheEntropy) {
  for (const double density : {0.1, 0.01, 0.001}) {
    const EliasFanoLayout layout(1'000'000, static_cast<std::size_t>(1e6 * density));
    const double bits = 8.0 * static_cast<double>(layout.bytes()) / (1e6 * density);
    const double entropy = -std::log2(density) - (1 - density) * std::log2(1 - density) / density;
    EXPECT_LT(bits, entropy + 0.7);
    EXPECT_GT(bits, entropy);
  }
}

TEST(EliasFano, EverySingleFlippedBitIsNoticedOrGivesAnotherValidList) {
  const std::vector<std::size_t> indices = {3, 7, 18, 19, 40, 63, 64, 90};
  const EliasFanoLayout layout(100, indices.size());
  const Bytes good = code(100, indices);
  for (std::size_t bit = 0; bit < good.size() * 8; ++bit) {
    Bytes bad = good;
    bad[bit / 8] ^= std::byte{1} << (bit % 8);
    if (!valid_elias_fano(layout, bad)) continue;
    EliasFanoReader reader(layout, bad);
    std::size_t last = reader.next();
    for (std::size_t i = 1; i < indices.size(); ++i) {
      const std::size_t index = reader.next();
      ASSERT_GT(index, last);
      last = index;
    }
    ASSERT_LT(last, 100u);
    ASSERT_LT(bit, layout.low_bytes() * 8) << "a changed number of high bits was accepted";
  }
}

TEST(EliasFano, RefusesOutOfRangeUnsortedAndPadded) {
  // n = 5, k = 1: 2 low bits in one byte, 1 + (4 >> 2) = 2 high bits.
  const EliasFanoLayout layout(5, 1);
  EXPECT_TRUE(valid_elias_fano(layout, bytes({0b00, 0b10})));    // 4
  EXPECT_FALSE(valid_elias_fano(layout, bytes({0b01, 0b10})));   // 5
  EXPECT_FALSE(valid_elias_fano(layout, bytes({0b100, 0b10})));  // padding of the low part
  EXPECT_FALSE(valid_elias_fano(layout, bytes({0b00, 0b100})));  // padding of the high part
  EXPECT_FALSE(valid_elias_fano(layout, bytes({0b00, 0b11})));   // two bits for one index
  EXPECT_FALSE(valid_elias_fano(layout, bytes({0b00, 0b00})));   // none
  EXPECT_FALSE(valid_elias_fano(layout, bytes({0b00})));         // too short
  const EliasFanoLayout pair(8, 2);                              // 2 low bits each
  EXPECT_TRUE(valid_elias_fano(pair, bytes({0b1001, 0b011})));   // 1, 2
  EXPECT_FALSE(valid_elias_fano(pair, bytes({0b0110, 0b011})));  // 2, 1
  EXPECT_FALSE(valid_elias_fano(pair, bytes({0b0101, 0b011})));  // 1, 1
}

}  // namespace
}  // namespace tersum::test
