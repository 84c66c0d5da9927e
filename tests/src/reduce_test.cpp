#include "src/reduce.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "src/numbers.hpp"
#include "tersum/error.hpp"

namespace tersum::runtime {
namespace {

using test::float_at;
using test::integer_at;
using Bytes = std::vector<std::byte>;

/// What the ranks' arrays are reduced to, as a collective does it.
Bytes reduce_all(DType dtype, ReduceOp op, const std::vector<Bytes>& inputs, std::size_t count,
                 double pre_scale = 1, double post_scale = 1) {
  const Arithmetic arithmetic(dtype, op);
  Bytes sums(count * arithmetic.accumulator_bytes()), result(count * element_bytes(dtype));
  arithmetic.load(sums.data(), inputs[0].data(), count, pre_scale);
  for (std::size_t r = 1; r < inputs.size(); ++r)
    arithmetic.combine(sums.data(), inputs[r].data(), count, pre_scale);
  arithmetic.store(sums.data(), result.data(), count, static_cast<int>(inputs.size()), post_scale);
  return result;
}

/// Equal bits, or NaN both.
::testing::AssertionResult same(DType dtype, const Bytes& got, const Bytes& expected) {
  const std::size_t element = element_bytes(dtype);
  for (std::size_t i = 0; i < expected.size() / element; ++i) {
    if (std::memcmp(&got[i * element], &expected[i * element], element) == 0) continue;
    if (is_floating(dtype)) {
      const double a = float_at(dtype, got.data(), i), b = float_at(dtype, expected.data(), i);
      if (std::isnan(a) && std::isnan(b)) continue;
      return ::testing::AssertionFailure() << "element " << i << " is " << a << " instead of " << b;
    }
    return ::testing::AssertionFailure()
           << "element " << i << " is " << integer_at(dtype, got.data(), i) << " instead of "
           << integer_at(dtype, expected.data(), i);
  }
  return ::testing::AssertionSuccess();
}

/// Any bits for integers; for floats of all magnitudes, one in eight is special.
Bytes random_elements(DType dtype, std::size_t count, std::mt19937_64& random) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  const double special[] = {0.0,    -0.0,  kInf,   -kInf,  std::nan(""), 6e-8, -6e-8, 1e-40,
                            -1e-40, 65504, -65504, 3.4e38, -3.4e38,      1.5,  -2.5,  0.1};
  Bytes data(count * element_bytes(dtype));
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t bits = random();
    if (dtype == DType::Bool) {
      test::put(dtype, data.data(), i, 0, static_cast<int>(bits % 3));  // 2 is true too
    } else if (!is_floating(dtype)) {
      test::put(dtype, data.data(), i, 0, static_cast<std::int64_t>(bits));
    } else if (bits % 8 == 0) {
      test::put(dtype, data.data(), i, special[bits / 8 % std::size(special)], 0);
    } else {
      const double unit = static_cast<double>(bits >> 11) / 9007199254740992.0 - 0.5;
      test::put(dtype, data.data(), i, std::ldexp(unit, static_cast<int>(bits / 8 % 24) - 12), 0);
    }
  }
  return data;
}

class ReduceOfType : public ::testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(All, ReduceOfType, ::testing::ValuesIn(test::kAllDTypes),
                         [](const auto& test) { return std::string(to_string(test.param)); });

TEST_P(ReduceOfType, EqualsTheScalarReference) {
  std::mt19937_64 random(11);
  for (ReduceOp op : test::kAllOps) {
    if (!test::has_meaning(GetParam(), op)) continue;
    for (std::size_t count : {0u, 1u, 7u, 1023u, 1025u, 5000u})
      for (std::size_t ranks : {1u, 2u, 3u, 8u}) {
        std::vector<Bytes> inputs;
        for (std::size_t r = 0; r < ranks; ++r)
          inputs.push_back(random_elements(GetParam(), count, random));
        const auto before = inputs;
        EXPECT_TRUE(same(GetParam(), reduce_all(GetParam(), op, inputs, count),
                         test::reduced(GetParam(), op, inputs, count)))
            << to_string(op) << " of " << count << " on " << ranks;
        EXPECT_EQ(inputs, before);
      }
  }
}

TEST_P(ReduceOfType, MergesPartialResultsInEitherOrder) {
  std::mt19937_64 random(12);
  for (ReduceOp op : test::kAllOps) {
    if (!test::has_meaning(GetParam(), op)) continue;
    const Arithmetic arithmetic(GetParam(), op);
    if (!arithmetic.accumulates_in_place()) continue;
    for (std::size_t count : {0u, 1u, 7u, 1025u})
      for (bool other_first : {false, true}) {
        const std::vector<Bytes> inputs{random_elements(GetParam(), count, random),
                                        random_elements(GetParam(), count, random)};
        Bytes acc(count * element_bytes(GetParam())), other(acc.size());
        arithmetic.load(acc.data(), inputs[other_first ? 1 : 0].data(), count, 1);
        arithmetic.load(other.data(), inputs[other_first ? 0 : 1].data(), count, 1);
        arithmetic.merge(acc.data(), other.data(), count, other_first);
        arithmetic.store(acc.data(), acc.data(), count, 2, 1);
        EXPECT_TRUE(same(GetParam(), acc, test::reduced(GetParam(), op, inputs, count)))
            << to_string(op) << " of " << count << (other_first ? ", other first" : "");
      }
  }
}

TEST_P(ReduceOfType, BothRanksOfAMergeGetTheSameBits) {
  // In recursive doubling each of two ranks merges the other's values into its own. NaNs with
  // different payloads and zeros with different signs must not tell them apart afterwards.
  std::mt19937_64 random(13);
  for (ReduceOp op : test::kAllOps) {
    if (!test::has_meaning(GetParam(), op)) continue;
    const Arithmetic arithmetic(GetParam(), op);
    if (!arithmetic.accumulates_in_place()) continue;
    constexpr std::size_t kCount = 1000;
    Bytes low = random_elements(GetParam(), kCount, random),
          high = random_elements(GetParam(), kCount, random);
    if (GetParam() == DType::Float32)
      for (std::size_t i = 0; i < kCount; i += 3) {
        test::store_as(&low[i * 4], 0x7fc00001u + static_cast<std::uint32_t>(i));
        test::store_as(&high[i * 4], 0xffc00002u + static_cast<std::uint32_t>(2 * i));
      }
    if (GetParam() == DType::Float64)
      for (std::size_t i = 0; i < kCount; i += 3) {
        test::store_as(&low[i * 8], 0x7ff8000000000001ull + i);
        test::store_as(&high[i * 8], 0xfff8000000000002ull + 2 * i);
      }
    Bytes at_low(low.size()), at_high(low.size()), sent_low(low.size()), sent_high(low.size());
    arithmetic.load(at_low.data(), low.data(), kCount, 1);
    arithmetic.load(at_high.data(), high.data(), kCount, 1);
    sent_low = at_low;
    sent_high = at_high;
    arithmetic.merge(at_low.data(), sent_high.data(), kCount, false);
    arithmetic.merge(at_high.data(), sent_low.data(), kCount, true);
    EXPECT_EQ(at_low, at_high) << to_string(op);
  }
}

TEST(Reduce, AppliesScalesInTheAccumulator) {
  std::mt19937_64 random(14);
  for (DType dtype : {DType::Float16, DType::BFloat16, DType::Float32, DType::Float64})
    for (ReduceOp op : test::kAllOps)
      for (std::size_t count : {1u, 7u, 1025u}) {
        std::vector<Bytes> inputs;
        for (int r = 0; r < 3; ++r) inputs.push_back(random_elements(dtype, count, random));
        EXPECT_TRUE(same(dtype, reduce_all(dtype, op, inputs, count, 0.3, 7.0),
                         test::reduced(dtype, op, inputs, count, 0.3, 7.0)))
            << to_string(op) << " of " << count;
      }
}

/// One element of each rank, as numbers.
double reduce_floats(DType dtype, ReduceOp op, const std::vector<double>& values) {
  std::vector<Bytes> inputs;
  for (double value : values) {
    inputs.emplace_back(element_bytes(dtype));
    test::put(dtype, inputs.back().data(), 0, value, 0);
  }
  return float_at(dtype, reduce_all(dtype, op, inputs, 1).data(), 0);
}
std::int64_t reduce_integers(DType dtype, ReduceOp op, const std::vector<std::int64_t>& values) {
  std::vector<Bytes> inputs;
  for (std::int64_t value : values) {
    inputs.emplace_back(element_bytes(dtype));
    test::put(dtype, inputs.back().data(), 0, 0, value);
  }
  return integer_at(dtype, reduce_all(dtype, op, inputs, 1).data(), 0);
}

TEST(Reduce, RoundsSixteenBitSumsToNearestEvenOnce) {
  EXPECT_EQ(reduce_floats(DType::Float16, ReduceOp::Sum, {2048, 1}), 2048);
  EXPECT_EQ(reduce_floats(DType::Float16, ReduceOp::Sum, {2048, 3}), 2052);
  // Rounded after each step this would stay 2048.
  EXPECT_EQ(reduce_floats(DType::Float16, ReduceOp::Sum, {2048, 1, 1, 1}), 2052);
  EXPECT_EQ(reduce_floats(DType::BFloat16, ReduceOp::Sum, {256, 1}), 256);
  EXPECT_EQ(reduce_floats(DType::BFloat16, ReduceOp::Sum, {256, 3}), 260);
  EXPECT_EQ(reduce_floats(DType::BFloat16, ReduceOp::Sum, {256, 1, 1, 1}), 260);
}

TEST(Reduce, AveragesOfHalvesNeitherOverflowNorVanish) {
  EXPECT_EQ(reduce_floats(DType::Float16, ReduceOp::Average, {65504, 65504, 65504, 65504}), 65504);
  const double least = std::ldexp(1.0, -24);
  EXPECT_EQ(reduce_floats(DType::Float16, ReduceOp::Average, {least, least, least}), least);
  EXPECT_TRUE(std::isinf(reduce_floats(DType::Float16, ReduceOp::Sum, {65504, 65504})));
}

TEST(Reduce, IntegerSumsAndProductsWrap) {
  EXPECT_EQ(reduce_integers(DType::Int8, ReduceOp::Sum, {100, 100}), -56);
  EXPECT_EQ(reduce_integers(DType::UInt8, ReduceOp::Sum, {200, 100}), 44);
  EXPECT_EQ(reduce_integers(DType::Int16, ReduceOp::Product, {300, 300}), 90000 - 65536);
  const auto most = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(reduce_integers(DType::Int64, ReduceOp::Sum, {most, 1}),
            std::numeric_limits<std::int64_t>::min());
}

TEST(Reduce, IntegerAveragesAreExactAndRoundTowardsZero) {
  EXPECT_EQ(reduce_integers(DType::Int8, ReduceOp::Average, {100, 100, 101}), 100);
  EXPECT_EQ(reduce_integers(DType::Int8, ReduceOp::Average, {-128, -128, -127}), -127);
  EXPECT_EQ(reduce_integers(DType::Int8, ReduceOp::Average, {-3, 0}), -1);
  EXPECT_EQ(reduce_integers(DType::UInt8, ReduceOp::Average, {255, 255, 254}), 254);
  EXPECT_EQ(reduce_integers(DType::Int32, ReduceOp::Average, {2147483647, 2147483645}), 2147483646);
  const auto most = std::numeric_limits<std::int64_t>::max();
  const auto least = std::numeric_limits<std::int64_t>::min();
  EXPECT_EQ(reduce_integers(DType::Int64, ReduceOp::Average, {most, most, most - 3}), most - 1);
  EXPECT_EQ(reduce_integers(DType::Int64, ReduceOp::Average, {least, least, least + 1}), least + 1);
}

TEST(Reduce, NaNWinsMinimaAndMaxima) {
  for (DType dtype : {DType::Float16, DType::BFloat16, DType::Float32, DType::Float64})
    for (ReduceOp op : {ReduceOp::Min, ReduceOp::Max}) {
      const double nan = std::nan("");
      EXPECT_TRUE(std::isnan(reduce_floats(dtype, op, {1, nan, 2})));
      EXPECT_TRUE(std::isnan(reduce_floats(dtype, op, {nan, 1, 2})));
      EXPECT_TRUE(std::isnan(reduce_floats(dtype, op, {1, 2, nan})));
    }
}

TEST(Reduce, TheFirstRankDecidesTheSignOfZero) {
  for (ReduceOp op : {ReduceOp::Min, ReduceOp::Max}) {
    EXPECT_FALSE(std::signbit(reduce_floats(DType::Float32, op, {0.0, -0.0})));
    EXPECT_TRUE(std::signbit(reduce_floats(DType::Float32, op, {-0.0, 0.0})));
  }
}

TEST(Reduce, BoolIsOrAndAnd) {
  for (ReduceOp any : {ReduceOp::Sum, ReduceOp::Max}) {
    EXPECT_EQ(reduce_integers(DType::Bool, any, {0, 1}), 1);
    EXPECT_EQ(reduce_integers(DType::Bool, any, {0, 0}), 0);
    EXPECT_EQ(reduce_integers(DType::Bool, any, {2, 4}), 1);
  }
  for (ReduceOp all : {ReduceOp::Product, ReduceOp::Min}) {
    EXPECT_EQ(reduce_integers(DType::Bool, all, {0, 1}), 0);
    EXPECT_EQ(reduce_integers(DType::Bool, all, {2, 4}), 1);
  }
  try {
    Arithmetic(DType::Bool, ReduceOp::Average);
    FAIL() << "the average of bool was taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::InvalidArgument);
    EXPECT_NE(error.status().message().find("average of bool"), std::string::npos);
  }
}

}  // namespace
}  // namespace tersum::runtime
