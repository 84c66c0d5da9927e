// The data of tersum-perf: expected values by hand, exactness, conversions.
#include "perf/values.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "perf/elements.hpp"

namespace tersum::perf {
namespace {

constexpr std::size_t kCount = 200;

/// The reduction of `count` elements over `ranks` by the plainest code there is.
template <class T>
std::vector<T> reduced(const Values& values, DType dtype, ReduceOp op, int ranks) {
  std::vector<std::vector<T>> inputs;
  for (int rank = 0; rank < ranks; ++rank) {
    EXPECT_EQ(element_bytes(dtype), sizeof(T));
    inputs.emplace_back(kCount);
    values.fill(inputs.back().data(), rank, 0, kCount);
  }
  std::vector<T> result = inputs[0];
  for (std::size_t i = 0; i < kCount; ++i) {
    long double sum = 0;
    for (const auto& input : inputs) sum += static_cast<long double>(input[i]);
    for (std::size_t rank = 1; rank < inputs.size(); ++rank) {
      const T x = inputs[rank][i];
      if (op == ReduceOp::Sum) result[i] = static_cast<T>(result[i] + x);
      if (op == ReduceOp::Product) result[i] = static_cast<T>(result[i] * x);
      if (op == ReduceOp::Min) result[i] = std::min(result[i], x);
      if (op == ReduceOp::Max) result[i] = std::max(result[i], x);
    }
    if (op == ReduceOp::Average) result[i] = static_cast<T>(sum / ranks);
  }
  return result;
}

template <class T>
void expect_right_and_wrong(DType dtype, ReduceOp op, int ranks) {
  const Values values(dtype, op, ranks, 3);
  auto result = reduced<T>(values, dtype, op, ranks);
  const Segment all{0, kCount, kAllRanks, 0};
  EXPECT_EQ(values.wrong(result.data(), all), 0) << to_string(dtype) << " " << to_string(op);
  result[7] = static_cast<T>(result[7] + 1);
  result[9] = static_cast<T>(result[9] + 1);
  EXPECT_EQ(values.wrong(result.data(), all), 2) << to_string(dtype) << " " << to_string(op);
  const Segment part{0, 5, kAllRanks, 10};  // elements 10 to 14 of the reduction
  EXPECT_EQ(values.wrong(result.data() + 10, part), 0);
}

TEST(Values, KnowEveryReduction) {
  for (const ReduceOp op :
       {ReduceOp::Sum, ReduceOp::Average, ReduceOp::Min, ReduceOp::Max, ReduceOp::Product}) {
    for (const int ranks : {1, 2, 5}) {
      expect_right_and_wrong<std::int32_t>(DType::Int32, op, ranks);
      expect_right_and_wrong<std::int64_t>(DType::Int64, op, ranks);
      expect_right_and_wrong<float>(DType::Float32, op, ranks);
      expect_right_and_wrong<double>(DType::Float64, op, ranks);
    }
  }
}

TEST(Values, LetSmallIntegersWrap) {
  expect_right_and_wrong<std::int8_t>(DType::Int8, ReduceOp::Sum, 5);
  expect_right_and_wrong<std::uint8_t>(DType::UInt8, ReduceOp::Sum, 5);
  expect_right_and_wrong<std::int8_t>(DType::Int8, ReduceOp::Product, 5);
  expect_right_and_wrong<std::uint8_t>(DType::UInt8, ReduceOp::Average, 5);
}

TEST(Values, ReduceBoolsToBothValues) {
  for (const ReduceOp op : {ReduceOp::Sum, ReduceOp::Max, ReduceOp::Min, ReduceOp::Product}) {
    const bool any = op == ReduceOp::Sum || op == ReduceOp::Max;
    const Values values(DType::Bool, op, 4, 1);
    std::vector<std::uint8_t> result(kCount);
    int ones = 0;
    for (std::size_t i = 0; i < kCount; ++i) {
      int count = 0;
      for (int rank = 0; rank < 4; ++rank) count += values.number(rank, i) != 0 ? 1 : 0;
      result[i] = (any ? count > 0 : count == 4) ? 1 : 0;
      ones += result[i];
    }
    EXPECT_GT(ones, 20) << to_string(op);
    EXPECT_LT(ones, 180) << to_string(op);
    EXPECT_EQ(values.wrong(result.data(), {0, kCount, kAllRanks, 0}), 0) << to_string(op);
    result[3] ^= 1;
    EXPECT_EQ(values.wrong(result.data(), {0, kCount, kAllRanks, 0}), 1) << to_string(op);
  }
}

TEST(Values, AreExactForSixteenBitSums) {
  for (const DType dtype : {DType::Float16, DType::BFloat16}) {
    const double limit = dtype == DType::Float16 ? 2048 : 256;
    for (const int ranks : {2, 8, 64}) {
      const Values values(dtype, ReduceOp::Sum, ranks, 1);
      EXPECT_TRUE(values.exact());
      for (std::size_t i = 0; i < kCount; ++i) {
        double magnitude = 0;
        for (int rank = 0; rank < ranks; ++rank) {
          magnitude += std::fabs(static_cast<double>(values.number(rank, i)));
        }
        EXPECT_LE(magnitude, limit);
      }
    }
    EXPECT_FALSE(Values(dtype, ReduceOp::Sum, 4096, 1).exact());
    EXPECT_FALSE(Values(dtype, ReduceOp::Average, 3, 1).exact());
  }
}

TEST(Values, AllowAveragesOneUnitInTheLastPlaceAndNoMore) {
  const Values values(DType::Float32, ReduceOp::Average, 3, 1);
  auto result = reduced<float>(values, DType::Float32, ReduceOp::Average, 3);
  std::size_t at = 0;
  while (std::fabs(result[at]) < 1) ++at;
  const Segment all{0, kCount, kAllRanks, 0};
  EXPECT_EQ(values.wrong(result.data(), all), 0);
  const float away = std::copysign(std::numeric_limits<float>::infinity(), result[at]);
  for (int i = 0; i < 4; ++i) result[at] = std::nextafter(result[at], away);
  EXPECT_EQ(values.wrong(result.data(), all), 1);
  result[at] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(values.wrong(result.data(), all), 1);
}

TEST(Values, DifferByRankAndRoundAndIndex) {
  const auto filled = [](std::uint64_t round, int rank, std::size_t at) {
    std::vector<std::int32_t> data(kCount);
    Values(DType::Int32, ReduceOp::Sum, 3, round).fill(data.data(), rank, at, kCount);
    return data;
  };
  const auto first = filled(1, 0, 0);
  EXPECT_EQ(first, filled(1, 0, 0));
  EXPECT_NE(first, filled(2, 0, 0));
  EXPECT_NE(first, filled(1, 1, 0));
  const auto later = filled(1, 0, 10);
  EXPECT_TRUE(std::equal(later.begin(), later.end() - 10, first.begin() + 10));
}

TEST(Elements, RoundSixteenBitFloatsToNearestEven) {
  EXPECT_EQ(encode_float16<10>(1.0), 0x3c00);
  EXPECT_EQ(encode_float16<10>(-2.5), 0xc100);
  EXPECT_EQ(encode_float16<10>(0.0), 0x0000);
  EXPECT_EQ(encode_float16<10>(-0.0), 0x8000);
  EXPECT_EQ(encode_float16<10>(65504.0), 0x7bff);
  EXPECT_EQ(encode_float16<10>(65520.0), 0x7c00);  // halfway to what there is not: infinity
  EXPECT_EQ(encode_float16<10>(2049.0), 0x6800);   // ties to even
  EXPECT_EQ(encode_float16<10>(2051.0), 0x6802);
  EXPECT_EQ(encode_float16<10>(std::ldexp(1, -14)), 0x0400);
  EXPECT_EQ(encode_float16<10>(std::ldexp(3, -24)), 0x0003);  // subnormal
  EXPECT_EQ(encode_float16<10>(std::ldexp(1, -26)), 0x0000);
  EXPECT_EQ(encode_float16<7>(1.0), 0x3f80);
  EXPECT_EQ(encode_float16<7>(-3.140625), 0xc049);
  EXPECT_EQ(encode_float16<7>(257.0), 0x4380);
}

TEST(Elements, DecodeEverySixteenBitFloatToWhatEncodesToIt) {
  for (int bits = 0; bits < 0x10000; ++bits) {
    const auto raw = static_cast<std::uint16_t>(bits);
    const double half = decode_float16<10>(raw), brain = decode_float16<7>(raw);
    if (std::isfinite(half)) {
      ASSERT_EQ(encode_float16<10>(half), raw);
    }
    if (std::isfinite(brain)) {
      ASSERT_EQ(encode_float16<7>(brain), raw);
    }
  }
  EXPECT_TRUE(std::isinf(decode_float16<10>(0x7c00)));
  EXPECT_TRUE(std::isnan(decode_float16<7>(0x7fc0)));
}

}  // namespace
}  // namespace tersum::perf
