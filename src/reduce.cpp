#include "src/reduce.hpp"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>

#include "compressors/convert.hpp"
#include "tersum/error.hpp"

namespace tersum::runtime {
namespace {

using Wide = __int128;  // exact sum of int64 over any number of ranks

template <class T>
constexpr bool is_nan(T value) {
  if constexpr (std::is_floating_point_v<T>) return value != value;
  return false;
}

// Integer sums and products wrap: unsigned arithmetic keeps that defined.
template <class T>
T add(T a, T b) {
  if constexpr (std::is_integral_v<T> && sizeof(T) <= 8) {
    using U = std::make_unsigned_t<T>;
    return static_cast<T>(
        static_cast<U>(static_cast<std::uint64_t>(static_cast<U>(a)) + static_cast<U>(b)));
  } else {
    return a + b;
  }
}
template <class T>
T multiply(T a, T b) {
  if constexpr (std::is_integral_v<T> && sizeof(T) <= 8) {
    using U = std::make_unsigned_t<T>;
    return static_cast<T>(
        static_cast<U>(static_cast<std::uint64_t>(static_cast<U>(a)) * static_cast<U>(b)));
  } else {
    return a * b;
  }
}

template <class T>
struct Add {
  static T apply(T a, T b) { return add(a, b); }
};
template <class T>
struct Multiply {
  static T apply(T a, T b) { return multiply(a, b); }
};
template <class T>
struct Minimum {  // NaN wins: a lost gradient must not hide
  static T apply(T a, T b) { return is_nan(a) ? a : is_nan(b) ? b : b < a ? b : a; }
};
template <class T>
struct Maximum {
  static T apply(T a, T b) { return is_nan(a) ? a : is_nan(b) ? b : a < b ? b : a; }
};

template <class Op, class T, class In>
void combine_loop(T* acc, const In* in, std::size_t count, [[maybe_unused]] double scale) {
  if constexpr (std::is_floating_point_v<T>) {
    if (scale != 1.0) {
      const T factor = static_cast<T>(scale);
      for (std::size_t i = 0; i < count; ++i)
        acc[i] = Op::apply(acc[i], factor * static_cast<T>(in[i]));
      return;
    }
  }
  for (std::size_t i = 0; i < count; ++i) acc[i] = Op::apply(acc[i], static_cast<T>(in[i]));
}

/// Which of two NaNs a sum keeps depends on how the compiler orders its operands: merged values of
/// two ranks must not tell them apart.
template <class T>
T one_nan(T value) {
  return is_nan(value) ? std::numeric_limits<T>::quiet_NaN() : value;
}

template <class Op, class T>
void merge_loop(T* acc, const T* other, std::size_t count, bool other_first) {
  if (other_first)
    for (std::size_t i = 0; i < count; ++i) acc[i] = one_nan(Op::apply(other[i], acc[i]));
  else
    for (std::size_t i = 0; i < count; ++i) acc[i] = one_nan(Op::apply(acc[i], other[i]));
}

/// Calls function.template operator()<Operator<T>>() for a runtime operator.
template <class T, class Function>
void with_operator(ReduceOp op, Function&& function) {
  switch (op) {
    case ReduceOp::Sum:
    case ReduceOp::Average:
      return function.template operator()<Add<T>>();
    case ReduceOp::Min:
      return function.template operator()<Minimum<T>>();
    case ReduceOp::Max:
      return function.template operator()<Maximum<T>>();
    case ReduceOp::Product:
      return function.template operator()<Multiply<T>>();
  }
}

/// Calls function.template operator()<Accumulator, Element>() for a runtime dtype; 16-bit floats
/// are not seen here.
template <class Function>
void with_types(DType dtype, ReduceOp op, Function&& function) {
  const bool average = op == ReduceOp::Average;
  const auto integer = [&]<class T, class W>() {
    average ? function.template operator()<W, T>() : function.template operator()<T, T>();
  };
  switch (dtype) {
    case DType::Int8:
      return integer.template operator()<std::int8_t, std::int64_t>();
    case DType::UInt8:
      return integer.template operator()<std::uint8_t, std::int64_t>();
    case DType::Int16:
      return integer.template operator()<std::int16_t, std::int64_t>();
    case DType::Int32:
      return integer.template operator()<std::int32_t, std::int64_t>();
    case DType::Int64:
      return integer.template operator()<std::int64_t, Wide>();
    case DType::Bool:
      return function.template operator()<std::uint8_t, std::uint8_t>();
    case DType::Float64:
      return function.template operator()<double, double>();
    default:
      return function.template operator()<float, float>();
  }
}

/// Calls function(floats, offset, n) for runs of 16-bit floats converted into a small buffer.
template <class Function>
void for_converted(DType dtype, const void* in, std::size_t count, Function&& function) {
  constexpr std::size_t kRun = 1024;
  float run[kRun];
  for (std::size_t i = 0; i < count; i += kRun) {
    const std::size_t n = std::min(kRun, count - i);
    compressors::to_float(dtype, static_cast<const std::uint16_t*>(in) + i, run, n);
    function(run, i, n);
  }
}

/// "or" for sum and max, "and" for product and min; results are 0 or 1.
void combine_bool(ReduceOp op, std::uint8_t* acc, const std::uint8_t* in, std::size_t count) {
  const bool any = op == ReduceOp::Sum || op == ReduceOp::Max;
  for (std::size_t i = 0; i < count; ++i) {
    const bool a = acc[i] != 0, b = in[i] != 0;
    acc[i] = any ? (a | b) : (a & b);
  }
}

}  // namespace

Arithmetic::Arithmetic(DType dtype, ReduceOp op) : dtype_(dtype), op_(op) {
  if (dtype == DType::Bool && op == ReduceOp::Average)
    throw Error(Code::InvalidArgument,
                "the average of bool has no meaning: use max (any) or min (all), or another dtype");
  const bool average = op == ReduceOp::Average && !is_floating(dtype);
  accumulator_bytes_ = is_half(dtype)                     ? sizeof(float)
                       : average && dtype == DType::Int64 ? sizeof(Wide)
                       : average                          ? sizeof(std::int64_t)
                                                          : element_bytes(dtype);
  in_place_ = !is_half(dtype) && !average;
}

void Arithmetic::load(void* acc, const void* in, std::size_t count, double scale) const {
  if (is_half(dtype_)) {
    auto* sums = static_cast<float*>(acc);
    compressors::to_float(dtype_, in, sums, count);
    if (scale != 1.0)
      for (std::size_t i = 0; i < count; ++i) sums[i] *= static_cast<float>(scale);
    return;
  }
  with_types(dtype_, op_, [&]<class T, class In>() {
    auto* to = static_cast<T*>(acc);
    const auto* from = static_cast<const In*>(in);
    if constexpr (std::is_floating_point_v<T>) {
      if (scale != 1.0) {
        for (std::size_t i = 0; i < count; ++i) to[i] = static_cast<T>(scale) * from[i];
        return;
      }
    }
    std::copy(from, from + count, to);
  });
  if (dtype_ == DType::Bool)
    for (std::size_t i = 0; i < count; ++i)
      static_cast<std::uint8_t*>(acc)[i] = static_cast<const std::uint8_t*>(in)[i] != 0;
}

void Arithmetic::combine(void* acc, const void* in, std::size_t count, double scale) const {
  if (dtype_ == DType::Bool)
    return combine_bool(op_, static_cast<std::uint8_t*>(acc), static_cast<const std::uint8_t*>(in),
                        count);
  if (is_half(dtype_)) {
    for_converted(dtype_, in, count, [&](const float* run, std::size_t offset, std::size_t n) {
      with_operator<float>(op_, [&]<class Op>() {
        combine_loop<Op>(static_cast<float*>(acc) + offset, run, n, scale);
      });
    });
    return;
  }
  with_types(dtype_, op_, [&]<class T, class In>() {
    with_operator<T>(op_, [&]<class Op>() {
      combine_loop<Op>(static_cast<T*>(acc), static_cast<const In*>(in), count, scale);
    });
  });
}

void Arithmetic::merge(void* acc, const void* other, std::size_t count, bool other_first) const {
  if (dtype_ == DType::Bool)
    return combine_bool(op_, static_cast<std::uint8_t*>(acc),
                        static_cast<const std::uint8_t*>(other), count);
  with_types(dtype_, op_, [&]<class T, class In>() {
    with_operator<T>(op_, [&]<class Op>() {
      merge_loop<Op>(static_cast<T*>(acc), static_cast<const T*>(other), count, other_first);
    });
  });
}

void Arithmetic::store(void* acc, void* out, std::size_t count, int ranks, double scale) const {
  const bool average = op_ == ReduceOp::Average;
  with_types(dtype_, op_, [&]<class T, class Out>() {
    auto* sums = static_cast<T*>(acc);
    if (average) {
      const T divisor = static_cast<T>(ranks);
      for (std::size_t i = 0; i < count; ++i) sums[i] = static_cast<T>(sums[i] / divisor);
    }
    if constexpr (std::is_floating_point_v<T>) {
      if (scale != 1.0)
        for (std::size_t i = 0; i < count; ++i) sums[i] *= static_cast<T>(scale);
    }
    if (is_half(dtype_)) return;  // converted below
    auto* to = static_cast<Out*>(out);
    if (static_cast<void*>(to) == acc) return;
    for (std::size_t i = 0; i < count; ++i) to[i] = static_cast<Out>(sums[i]);
  });
  if (is_half(dtype_)) compressors::from_float(static_cast<const float*>(acc), dtype_, out, count);
}

}  // namespace tersum::runtime
