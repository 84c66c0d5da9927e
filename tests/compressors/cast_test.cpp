#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "compressors/convert.hpp"
#include "conformance/compressors_support.hpp"

namespace tersum::test {
namespace {

using compressors::from_float;
using compressors::to_float;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::uint16_t half(float x) {
  std::uint16_t result = 0;
  from_float(&x, DType::Float16, &result, 1);
  return result;
}

std::uint16_t bfloat(float x) {
  std::uint16_t result = 0;
  from_float(&x, DType::BFloat16, &result, 1);
  return result;
}

float widen(DType dtype, std::uint16_t x) {
  float result = 0;
  to_float(dtype, &x, &result, 1);
  return result;
}

// Value of a finite half or bfloat from its fields, by the definition of the formats.
double value_of(std::uint16_t x, int exponent_bits) {
  const int fraction_bits = 15 - exponent_bits;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = (x >> fraction_bits) & ((1 << exponent_bits) - 1);
  const int fraction = x & ((1 << fraction_bits) - 1);
  const double magnitude =
      exponent == 0 ? std::ldexp(fraction, 1 - bias - fraction_bits)
                    : std::ldexp(fraction + (1 << fraction_bits), exponent - bias - fraction_bits);
  return x >> 15 ? -magnitude : magnitude;
}

struct Format {
  DType dtype;
  int exponent_bits;
  std::uint16_t infinity;
};
constexpr Format kFormats[] = {{DType::Float16, 5, 0x7c00}, {DType::BFloat16, 8, 0x7f80}};

TEST(Convert, WidensEveryFiniteValueExactly) {
  for (const Format& format : kFormats) {
    for (unsigned x = 0; x < 0x10000; ++x) {
      if ((x & format.infinity) == format.infinity) continue;
      const auto narrow = static_cast<std::uint16_t>(x);
      const float wide = widen(format.dtype, narrow);
      ASSERT_EQ(static_cast<double>(wide), value_of(narrow, format.exponent_bits)) << x;
      ASSERT_EQ(std::signbit(wide), x >> 15 != 0) << x;
    }
  }
}

TEST(Convert, NarrowingInvertsWidening) {
  for (const Format& format : kFormats) {
    for (unsigned x = 0; x < 0x10000; ++x) {
      const float wide = widen(format.dtype, static_cast<std::uint16_t>(x));
      std::uint16_t back = 0;
      from_float(&wide, format.dtype, &back, 1);
      if ((x & 0x7fffu) > format.infinity) {
        ASSERT_TRUE(std::isnan(wide)) << x;
        ASSERT_GT(back & 0x7fffu, format.infinity) << x;
        ASSERT_EQ(back >> 15, x >> 15) << x;
      } else {
        ASSERT_EQ(back, x);
      }
    }
  }
}

// Between two neighbours the nearer one, the middle to the even one: checked at the middle and one
// fp32 step beside it, for every pair of neighbours of both signs.
TEST(Convert, RoundsToNearestEven) {
  for (const Format& format : kFormats) {
    for (std::uint16_t x = 0; x + 1 < format.infinity; ++x) {
      const double low = value_of(x, format.exponent_bits);
      const double high = value_of(static_cast<std::uint16_t>(x + 1), format.exponent_bits);
      const auto middle = static_cast<float>((low + high) / 2);
      ASSERT_EQ(static_cast<double>(middle), (low + high) / 2);
      const std::uint16_t even = x % 2 == 0 ? x : static_cast<std::uint16_t>(x + 1);
      for (const float sign : {1.0f, -1.0f}) {
        const auto narrow = [&](float value) {
          const float with_sign = sign * value;
          std::uint16_t result = 0;
          from_float(&with_sign, format.dtype, &result, 1);
          EXPECT_EQ(result >> 15, sign < 0 ? 1 : 0);
          return result & 0x7fff;
        };
        ASSERT_EQ(narrow(middle), even) << x;
        ASSERT_EQ(narrow(std::nextafter(middle, 0.0f)), x) << x;
        ASSERT_EQ(narrow(std::nextafter(middle, kInfinity)), x + 1) << x;
      }
    }
  }
}

TEST(Convert, OverflowsToInfinityHalfAStepBeyondTheLargestHalf) {
  EXPECT_EQ(half(65504.0f), 0x7bff);
  EXPECT_EQ(half(std::nextafter(65520.0f, 0.0f)), 0x7bff);
  EXPECT_EQ(half(65520.0f), 0x7c00);
  EXPECT_EQ(half(-1e30f), 0xfc00);
  EXPECT_EQ(half(kInfinity), 0x7c00);
  EXPECT_EQ(bfloat(std::numeric_limits<float>::max()), 0x7f80);
  EXPECT_EQ(bfloat(-kInfinity), 0xff80);
}

TEST(Convert, KeepsNanEvenWhereItsPayloadIsCutOff) {
  const auto narrow_nan = std::bit_cast<float>(0x7f800001u);
  EXPECT_TRUE(std::isnan(widen(DType::Float16, half(narrow_nan))));
  EXPECT_TRUE(std::isnan(widen(DType::BFloat16, bfloat(narrow_nan))));
  EXPECT_TRUE(std::signbit(widen(DType::Float16, half(std::bit_cast<float>(0xff800001u)))));
  EXPECT_TRUE(std::signbit(widen(DType::BFloat16, bfloat(std::bit_cast<float>(0xff800001u)))));
}

TEST(Convert, FloatSubnormalsUnderflowToSignedZeroHalves) {
  EXPECT_EQ(half(std::numeric_limits<float>::denorm_min()), 0x0000);
  EXPECT_EQ(half(-std::numeric_limits<float>::denorm_min()), 0x8000);
  EXPECT_EQ(half(0x1p-25f), 0x0000);  // the middle goes to the even neighbour
  EXPECT_EQ(half(std::nextafter(0x1p-25f, 1.0f)), 0x0001);
  EXPECT_EQ(half(-0.0f), 0x8000);
}

TEST(Convert, DoublesAndUnalignedMemory) {
  const Floats in = {1.5f, -0.0f, kInfinity, 3e-40f, -7.25f};
  for (const DType dtype : {DType::Float16, DType::BFloat16, DType::Float32, DType::Float64}) {
    const std::size_t size = element_bytes(dtype);
    Bytes raw(in.size() * size + 1);
    from_float(in.data(), dtype, raw.data() + 1, in.size());
    Floats back(in.size());
    to_float(dtype, raw.data() + 1, back.data(), in.size());
    EXPECT_EQ(back[0], 1.5f);
    EXPECT_TRUE(std::signbit(back[1]));
    EXPECT_EQ(back[2], kInfinity);
    EXPECT_EQ(back[4], -7.25f);
    if (dtype == DType::Float32 || dtype == DType::Float64) {
      EXPECT_EQ(bits(back), bits(in));
    }
  }
  const double third = 1.0 / 3.0;
  float rounded = 0;
  to_float(DType::Float64, &third, &rounded, 1);
  EXPECT_EQ(rounded, 1.0f / 3.0f);
}

TEST(Convert, RefusesIntegers) {
  float x = 0;
  std::int32_t y = 0;
  EXPECT_THROW(to_float(DType::Int32, &y, &x, 1), Error);
  EXPECT_THROW(from_float(&x, DType::Bool, &y, 1), Error);
}

TEST(None, GoldenPayload) {
  const Bytes payload = encode(*make_compressor("none"), Floats{1.0f, -2.5f});
  EXPECT_EQ(payload,
            bytes({1,    0,    1,    0,    8,    0,    0,    0,   2, 0, 0, 0, 0, 0, 0, 0,  //
                   0x00, 0x00, 0x80, 0x3f, 0x00, 0x00, 0x20, 0xc0}));
}

TEST(None, IsTheIdentityOnEveryBit) {
  const auto none = make_compressor("none");
  const Floats input = {0.0f, -0.0f, kInfinity, -kInfinity, 1e-45f, std::nanf("7"), 3.0f};
  EXPECT_EQ(bits(round_trip(*none, input)), bits(input));
}

TEST(Float16, GoldenPayload) {
  // 1 = 0x3c00, -2.5 = 0xc100, 2^-24 = 0x0001.
  const Bytes payload = encode(*make_compressor("fp16"), Floats{1.0f, -2.5f, 0x1p-24f});
  EXPECT_EQ(payload, bytes({2,    0,    1,    0,    6,    0,   0, 0, 3, 0, 0, 0, 0, 0, 0, 0,  //
                            0x00, 0x3c, 0x00, 0xc1, 0x01, 0x00}));
}

TEST(BFloat16, GoldenPayload) {
  // 1 = 0x3f80; 1 + 2^-8 is the middle between 0x3f80 and 0x3f81 and goes to the even one.
  const Bytes payload = encode(*make_compressor("bf16"), Floats{1.0f, 1.00390625f, -2.5f});
  EXPECT_EQ(payload, bytes({3,    0,    1,    0,    6,    0,   0, 0, 3, 0, 0, 0, 0, 0, 0, 0,  //
                            0x80, 0x3f, 0x80, 0x3f, 0x20, 0xc0}));
}

TEST(Casts, RelativeErrorIsHalfALastPlace) {
  const Floats input = gaussian(5000, 3);
  for (const auto& [spec, bound] : {std::pair("fp16", 0x1p-11f), std::pair("bf16", 0x1p-8f)}) {
    const Floats output = round_trip(*make_compressor(spec), input);
    for (std::size_t i = 0; i < input.size(); ++i) {
      const float slack = spec == std::string("fp16") ? 0x1p-25f : 0.0f;  // subnormal halves
      ASSERT_LE(std::fabs(output[i] - input[i]), bound * std::fabs(input[i]) + slack) << spec;
    }
  }
}

}  // namespace
}  // namespace tersum::test
