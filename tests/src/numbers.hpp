// Elements of every dtype as numbers and back, and reductions over ranks as the documentation
// defines them: written apart from the library, one element at a time, in exact or wider
// arithmetic.
#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <stdexcept>
#include <vector>

#include "tersum/types.hpp"

namespace tersum::test {

inline constexpr std::array kAllDTypes{
    DType::Int8, DType::UInt8,   DType::Int16,    DType::Int32,   DType::Int64,
    DType::Bool, DType::Float16, DType::BFloat16, DType::Float32, DType::Float64};
inline constexpr std::array kAllOps{ReduceOp::Sum, ReduceOp::Average, ReduceOp::Min, ReduceOp::Max,
                                    ReduceOp::Product};

inline bool has_meaning(DType dtype, ReduceOp op) {
  return dtype != DType::Bool || op != ReduceOp::Average;
}

/// A binary floating format of at most 16 bits.
struct SmallFloat {
  int exponent_bits, fraction_bits;

  int bias() const { return (1 << (exponent_bits - 1)) - 1; }

  double decode(std::uint16_t bits) const {
    const int fraction = bits & ((1 << fraction_bits) - 1);
    const int exponent = (bits >> fraction_bits) & ((1 << exponent_bits) - 1);
    const double sign = bits >> 15 ? -1.0 : 1.0;
    if (exponent == (1 << exponent_bits) - 1)
      return fraction != 0 ? std::copysign(std::numeric_limits<double>::quiet_NaN(), sign)
                           : sign * std::numeric_limits<double>::infinity();
    if (exponent == 0) return sign * std::ldexp(fraction, 1 - bias() - fraction_bits);
    return sign * std::ldexp((1 << fraction_bits) + fraction, exponent - bias() - fraction_bits);
  }

  /// Round to nearest, ties to even. NaN gives some NaN.
  std::uint16_t encode(double value) const {
    const auto sign = static_cast<std::uint16_t>(std::signbit(value) ? 0x8000 : 0);
    const int top = (1 << exponent_bits) - 1;
    const auto infinity = static_cast<std::uint16_t>(top << fraction_bits);
    if (std::isnan(value))
      return static_cast<std::uint16_t>(sign | infinity | 1 << (fraction_bits - 1));
    const double magnitude = std::fabs(value);
    if (magnitude == 0) return sign;
    if (std::isinf(magnitude)) return static_cast<std::uint16_t>(sign | infinity);
    const int exponent = std::max(std::ilogb(magnitude), 1 - bias());
    const double steps = std::nearbyint(std::ldexp(magnitude, fraction_bits - exponent));
    // A carry out of the fraction goes into the exponent by itself, up to infinity.
    const auto bits = static_cast<std::int64_t>(steps) +
                      (static_cast<std::int64_t>(exponent + bias() - 1) << fraction_bits);
    return static_cast<std::uint16_t>(sign | std::min<std::int64_t>(bits, infinity));
  }
};
inline constexpr SmallFloat kHalf{5, 10};
inline constexpr SmallFloat kBrain{8, 7};

template <class T>
T load_as(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof(T));
  return value;
}
template <class T>
void store_as(std::byte* at, T value) {
  std::memcpy(at, &value, sizeof(T));
}

/// Element `i` of an array of a floating dtype.
inline double float_at(DType dtype, const std::byte* data, std::size_t i) {
  const std::byte* at = data + i * element_bytes(dtype);
  switch (dtype) {
    case DType::Float16:
      return kHalf.decode(load_as<std::uint16_t>(at));
    case DType::BFloat16:
      return kBrain.decode(load_as<std::uint16_t>(at));
    case DType::Float32:
      return load_as<float>(at);
    case DType::Float64:
      return load_as<double>(at);
    default:
      throw std::logic_error("not a floating dtype");
  }
}

/// Element `i` of an array of an integer dtype or bool.
inline std::int64_t integer_at(DType dtype, const std::byte* data, std::size_t i) {
  const std::byte* at = data + i * element_bytes(dtype);
  switch (dtype) {
    case DType::Int8:
      return load_as<std::int8_t>(at);
    case DType::UInt8:
    case DType::Bool:
      return load_as<std::uint8_t>(at);
    case DType::Int16:
      return load_as<std::int16_t>(at);
    case DType::Int32:
      return load_as<std::int32_t>(at);
    case DType::Int64:
      return load_as<std::int64_t>(at);
    default:
      throw std::logic_error("not an integer dtype");
  }
}

/// Writes a number rounded to the dtype (floating) or wrapped to it (integers, from `whole`).
inline void put(DType dtype, std::byte* data, std::size_t i, double number, __int128 whole) {
  std::byte* at = data + i * element_bytes(dtype);
  switch (dtype) {
    case DType::Int8:
      return store_as(at, static_cast<std::int8_t>(static_cast<std::uint8_t>(whole)));
    case DType::UInt8:
    case DType::Bool:
      return store_as(at, static_cast<std::uint8_t>(whole));
    case DType::Int16:
      return store_as(at, static_cast<std::int16_t>(static_cast<std::uint16_t>(whole)));
    case DType::Int32:
      return store_as(at, static_cast<std::int32_t>(static_cast<std::uint32_t>(whole)));
    case DType::Int64:
      return store_as(at, static_cast<std::int64_t>(static_cast<std::uint64_t>(whole)));
    case DType::Float16:
      return store_as(at, kHalf.encode(number));
    case DType::BFloat16:
      return store_as(at, kBrain.encode(number));
    case DType::Float32:
      return store_as(at, static_cast<float>(number));
    case DType::Float64:
      return store_as(at, number);
  }
}
inline void put(DType dtype, std::byte* data, std::size_t i, int number) {
  put(dtype, data, i, number, number);
}

/// The reduction of integers (one of each rank) before it is wrapped to the dtype.
inline __int128 reduce_integers(DType dtype, ReduceOp op, std::span<const std::int64_t> values) {
  if (dtype == DType::Bool) {
    bool any = false, all = true;
    for (std::int64_t v : values) {
      any = any || v != 0;
      all = all && v != 0;
    }
    return op == ReduceOp::Sum || op == ReduceOp::Max ? any : all;
  }
  __int128 sum = 0, least = values[0], most = values[0];
  std::uint64_t product = 1;
  for (std::int64_t v : values) {
    sum += v;
    least = std::min<__int128>(least, v);
    most = std::max<__int128>(most, v);
    product *= static_cast<std::uint64_t>(v);
  }
  switch (op) {
    case ReduceOp::Sum:
      return sum;
    case ReduceOp::Average:
      return sum / static_cast<int>(values.size());  // towards zero
    case ReduceOp::Min:
      return least;
    case ReduceOp::Max:
      return most;
    case ReduceOp::Product:
      return static_cast<std::int64_t>(product);
  }
  return 0;
}

/// The reduction of floating elements in rank order, in T: the accumulator's own precision.
template <class T>
T reduce_floats(ReduceOp op, std::span<const double> values, double pre_scale = 1,
                double post_scale = 1) {
  const auto scaled = [&](double v) { return static_cast<T>(pre_scale) * static_cast<T>(v); };
  T result = scaled(values[0]);
  for (std::size_t r = 1; r < values.size(); ++r) {
    const T v = scaled(values[r]);
    if (op == ReduceOp::Sum || op == ReduceOp::Average)
      result = result + v;
    else if (op == ReduceOp::Product)
      result = result * v;
    else if (!std::isnan(result) &&
             (std::isnan(v) || (op == ReduceOp::Min ? v < result : v > result)))
      result = v;  // NaN wins; of equal ones the first rank's
  }
  if (op == ReduceOp::Average) result = result / static_cast<T>(values.size());
  return result * static_cast<T>(post_scale);
}

/// inputs[r] is rank r's array; the result is what every rank must get (in rank order, as all
/// algorithms give it where no rounding happens, and the direct one always).
inline std::vector<std::byte> reduced(DType dtype, ReduceOp op,
                                      const std::vector<std::vector<std::byte>>& inputs,
                                      std::size_t count, double pre_scale = 1,
                                      double post_scale = 1) {
  std::vector<std::byte> result(count * element_bytes(dtype));
  std::vector<double> floats(inputs.size());
  std::vector<std::int64_t> integers(inputs.size());
  for (std::size_t i = 0; i < count; ++i) {
    if (!is_floating(dtype)) {
      for (std::size_t r = 0; r < inputs.size(); ++r)
        integers[r] = integer_at(dtype, inputs[r].data(), i);
      put(dtype, result.data(), i, 0.0, reduce_integers(dtype, op, integers));
      continue;
    }
    for (std::size_t r = 0; r < inputs.size(); ++r)
      floats[r] = float_at(dtype, inputs[r].data(), i);
    const double value =
        dtype == DType::Float64
            ? reduce_floats<double>(op, floats, pre_scale, post_scale)
            : static_cast<double>(reduce_floats<float>(op, floats, pre_scale, post_scale));
    put(dtype, result.data(), i, value, 0);
  }
  return result;
}

/// Small whole numbers that differ by rank and place, exact in every dtype, as are their sums,
/// products and extremes over up to 8 ranks. Bool: 0 and 1.
inline std::vector<std::byte> pattern(DType dtype, ReduceOp op, int rank, std::size_t count) {
  std::vector<std::byte> data(count * element_bytes(dtype));
  for (std::size_t i = 0; i < count; ++i) {
    const int mixed = static_cast<int>((i * 7 + i / 16 + static_cast<std::size_t>(rank) * 5) % 16);
    if (dtype == DType::Bool)
      put(dtype, data.data(), i, mixed < 10 ? 1 : 0);
    else if (op == ReduceOp::Product)
      put(dtype, data.data(), i, std::array{1, 2, -1, 1}[static_cast<std::size_t>(mixed % 4)]);
    else
      put(dtype, data.data(), i, mixed - 8);
  }
  return data;
}

}  // namespace tersum::test
