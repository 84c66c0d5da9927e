// Element types as this benchmark sees them: conversions from small numbers and back, independent
// of those of the library that they are to test.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "tersum/error.hpp"
#include "tersum/types.hpp"

namespace tersum::perf {

/// Rounds a finite number to a 16-bit float with `kMantissaBits`, to nearest even.
template <int kMantissaBits>
std::uint16_t encode_float16(double value) {
  constexpr int kExponents = 1 << (15 - kMantissaBits);
  constexpr int kBias = kExponents / 2 - 1;
  int exponent = -kBias;                         // of zero: the least
  if (value != 0) std::frexp(value, &exponent);  // |value| is in [2^(exponent-1), 2^exponent)
  const int shown = std::max(exponent - 1 + kBias, 1);  // subnormals share the least exponent
  // The significand in units of the last place; a carry moves into the exponent by itself.
  const auto units =
      static_cast<int>(std::nearbyint(std::ldexp(std::fabs(value), kMantissaBits + kBias - shown)));
  const int bits = ((shown - 1) << kMantissaBits) + units;
  constexpr int kInfinity = (kExponents - 1) << kMantissaBits;
  return static_cast<std::uint16_t>((std::signbit(value) ? 0x8000 : 0) | std::min(bits, kInfinity));
}

template <int kMantissaBits>
double decode_float16(std::uint16_t bits) {
  constexpr int kExponents = 1 << (15 - kMantissaBits);
  constexpr int kBias = kExponents / 2 - 1;
  const int exponent = (bits & 0x7fff) >> kMantissaBits;
  const int fraction = bits & ((1 << kMantissaBits) - 1);
  double value = 0;
  if (exponent == kExponents - 1) {
    value = fraction == 0 ? std::numeric_limits<double>::infinity()
                          : std::numeric_limits<double>::quiet_NaN();
  } else if (exponent == 0) {
    value = std::ldexp(fraction, 1 - kBias - kMantissaBits);
  } else {
    value = std::ldexp(fraction | 1 << kMantissaBits, exponent - kBias - kMantissaBits);
  }
  return (bits & 0x8000) != 0 ? -value : value;
}

/// `kExactIntegers`: up to here every integer is an element. `kEpsilon`: relative size of one unit
/// in the last place.
template <class T>
struct PlainElement {
  using Raw = T;
  static constexpr bool kFloating = std::numeric_limits<T>::is_iec559;
  static constexpr double kExactIntegers =
      kFloating ? static_cast<double>(std::uint64_t{1} << std::numeric_limits<T>::digits) : 0;
  static constexpr double kEpsilon =
      kFloating ? static_cast<double>(std::numeric_limits<T>::epsilon()) : 0;
  static T encode(std::int64_t value) noexcept { return static_cast<T>(value); }
  static T from_double(double value) noexcept { return static_cast<T>(value); }
  static double decode(T raw) noexcept { return static_cast<double>(raw); }
};

template <int kMantissaBits>
struct Float16Element {
  using Raw = std::uint16_t;
  static constexpr bool kFloating = true;
  static constexpr double kExactIntegers = 2 << kMantissaBits;
  static constexpr double kEpsilon = 1.0 / (1 << kMantissaBits);
  static constexpr std::int64_t kTableReach = 4096;

  static Raw encode(std::int64_t value) {
    static const auto table = [] {
      std::array<Raw, 2 * kTableReach + 1> made{};
      for (std::int64_t v = -kTableReach; v <= kTableReach; ++v) {
        made[static_cast<std::size_t>(v + kTableReach)] =
            encode_float16<kMantissaBits>(static_cast<double>(v));
      }
      return made;
    }();
    if (value < -kTableReach || value > kTableReach) {
      return encode_float16<kMantissaBits>(static_cast<double>(value));
    }
    return table[static_cast<std::size_t>(value + kTableReach)];
  }
  static Raw from_double(double value) { return encode_float16<kMantissaBits>(value); }
  static double decode(Raw raw) { return decode_float16<kMantissaBits>(raw); }
};

struct BoolElement : PlainElement<std::uint8_t> {
  static std::uint8_t encode(std::int64_t value) noexcept { return value != 0 ? 1 : 0; }
};

/// Calls `function` with an object of the element type of `dtype`.
template <class Function>
auto with_element(DType dtype, Function&& function) {
  switch (dtype) {
    case DType::Int8:
      return function(PlainElement<std::int8_t>{});
    case DType::UInt8:
      return function(PlainElement<std::uint8_t>{});
    case DType::Int16:
      return function(PlainElement<std::int16_t>{});
    case DType::Int32:
      return function(PlainElement<std::int32_t>{});
    case DType::Int64:
      return function(PlainElement<std::int64_t>{});
    case DType::Bool:
      return function(BoolElement{});
    case DType::Float16:
      return function(Float16Element<10>{});
    case DType::BFloat16:
      return function(Float16Element<7>{});
    case DType::Float32:
      return function(PlainElement<float>{});
    case DType::Float64:
      return function(PlainElement<double>{});
  }
  throw Error(Code::InvalidArgument, "unknown dtype");
}

}  // namespace tersum::perf
