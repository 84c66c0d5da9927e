// Arithmetic of reductions on the device: the same values as the host's, in the same order.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "cuda/collective_layout.hpp"
#include "tersum/types.hpp"

namespace tersum::gpu {

/// Element of a DType::Bool tensor.
struct Boolean {
  std::uint8_t value;
};

template <class T>
inline constexpr bool is_half_type = std::is_same_v<T, __half> || std::is_same_v<T, __nv_bfloat16>;

/// What values of T are accumulated in: fp32 for 16-bit floats and fp32, fp64 for fp64; integers in
/// one so wide that sums are exact, whose low bits are what a sum or product of T wraps to.
template <class T>
using AccumulatorOf = std::conditional_t<
    is_half_type<T> || std::is_same_v<T, float>, float,
    std::conditional_t<
        std::is_same_v<T, double>, double,
        std::conditional_t<std::is_same_v<T, std::int64_t>, __int128,
                           std::conditional_t<std::is_same_v<T, Boolean>, bool, std::int64_t>>>>;

/// Widens one value.
template <class T>
__device__ inline AccumulatorOf<T> widen(T value) {
  if constexpr (std::is_same_v<T, Boolean>) {
    return value.value != 0;
  } else {
    return static_cast<AccumulatorOf<T>>(value);
  }
}

/// Widens one value and scales it.
template <class T>
__device__ inline AccumulatorOf<T> widen(T value, const Arithmetic& arithmetic) {
  using Acc = AccumulatorOf<T>;
  if constexpr (std::is_floating_point_v<Acc>) {
    return widen(value) * static_cast<Acc>(arithmetic.pre_scale);
  } else {
    return widen(value);
  }
}

template <class Acc>
__device__ inline bool is_nan(Acc value) {
  if constexpr (std::is_floating_point_v<Acc>) return value != value;
  return false;
}

/// a op b. With kSum the operator is known to be a sum or an average. NaN wins minima and maxima.
template <bool kSum, class Acc>
__device__ inline Acc combine(Acc a, Acc b, ReduceOp op) {
  if constexpr (std::is_same_v<Acc, bool>) {
    return op == ReduceOp::Sum || op == ReduceOp::Max ? (a || b) : (a && b);
  } else {
    if (kSum || op == ReduceOp::Sum || op == ReduceOp::Average) return a + b;
    if (op == ReduceOp::Product) return a * b;
    if (is_nan(a)) return a;
    if (is_nan(b)) return b;
    return op == ReduceOp::Min ? (b < a ? b : a) : (a < b ? b : a);
  }
}

/// Rounds to T, to nearest even.
template <class T>
__device__ inline T round_to(AccumulatorOf<T> sum) {
  if constexpr (std::is_same_v<T, Boolean>) {
    return Boolean{static_cast<std::uint8_t>(sum ? 1 : 0)};
  } else if constexpr (std::is_same_v<T, __half>) {
    return __float2half_rn(sum);
  } else if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    return __float2bfloat16_rn(sum);
  } else {
    return static_cast<T>(sum);
  }
}

/// Divides an average, scales, and rounds to T.
template <class T>
__device__ inline T narrow(AccumulatorOf<T> sum, const Arithmetic& arithmetic, int ranks) {
  using Acc = AccumulatorOf<T>;
  if constexpr (!std::is_same_v<T, Boolean>) {
    if (arithmetic.op == ReduceOp::Average) sum = sum / static_cast<Acc>(ranks);
    if constexpr (std::is_floating_point_v<Acc>) {
      sum = sum * static_cast<Acc>(arithmetic.post_scale);
    }
  }
  return round_to<T>(sum);
}

/// As many values of T as Raw holds, accumulated in rank order. Raw is the vector that loads and
/// stores move. With kPlain it is known that nothing is scaled or averaged.
template <class T, class Raw, bool kSum, bool kPlain = false>
class Accumulators {
 public:
  static constexpr int kCount = sizeof(Raw) / sizeof(T);

  /// The first rank's values.
  __device__ void begin(const Raw& raw, const Arithmetic& arithmetic) {
    T values[kCount];
    memcpy(values, &raw, sizeof(Raw));
#pragma unroll
    for (int i = 0; i < kCount; ++i) sums_[i] = wide(values[i], arithmetic);
  }

  /// The next rank's values.
  __device__ void add(const Raw& raw, const Arithmetic& arithmetic) {
    T values[kCount];
    memcpy(values, &raw, sizeof(Raw));
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      sums_[i] = combine<kSum>(sums_[i], wide(values[i], arithmetic), arithmetic.op);
    }
  }

  __device__ Raw result(const Arithmetic& arithmetic, int ranks) const {
    T values[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      values[i] = kPlain ? round_to<T>(sums_[i]) : narrow<T>(sums_[i], arithmetic, ranks);
    }
    Raw raw;
    memcpy(&raw, values, sizeof(Raw));
    return raw;
  }

 private:
  __device__ static AccumulatorOf<T> wide(T value, const Arithmetic& arithmetic) {
    if constexpr (kPlain) return widen(value);
    return widen(value, arithmetic);
  }

  AccumulatorOf<T> sums_[kCount];
};

/// How much is known of a tensor's vectors before they are moved: Any may be cut off or not
/// aligned; Whole are neither.
enum class Vectors { Any, Whole };

/// Loads `valid` bytes (a multiple of sizeof(T)) at an address aligned for T; the rest is zero.
/// With `aligned` and a full vector it is one access.
template <class T, class Raw, Vectors kVectors = Vectors::Any>
__device__ inline Raw load_elements(const std::byte* from, bool aligned, std::uint64_t valid) {
  if (kVectors == Vectors::Whole || (aligned && valid >= sizeof(Raw))) {
    return *reinterpret_cast<const Raw*>(from);
  }
  constexpr int kCount = sizeof(Raw) / sizeof(T);
  T values[kCount] = {};
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    if ((i + 1) * sizeof(T) <= valid) values[i] = reinterpret_cast<const T*>(from)[i];
  }
  Raw raw;
  memcpy(&raw, values, sizeof(Raw));
  return raw;
}

/// Stores the first `valid` bytes.
template <class T, class Raw, Vectors kVectors = Vectors::Any>
__device__ inline void store_elements(std::byte* to, const Raw& raw, bool aligned,
                                      std::uint64_t valid) {
  if (kVectors == Vectors::Whole || (aligned && valid >= sizeof(Raw))) {
    *reinterpret_cast<Raw*>(to) = raw;
    return;
  }
  constexpr int kCount = sizeof(Raw) / sizeof(T);
  T values[kCount];
  memcpy(values, &raw, sizeof(Raw));
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    if ((i + 1) * sizeof(T) <= valid) reinterpret_cast<T*>(to)[i] = values[i];
  }
}

/// Calls function.template operator()<T>() with the element type of a dtype.
template <class Function>
void with_element_type(DType dtype, Function&& function) {
  switch (dtype) {
    case DType::Int8:
      return function.template operator()<std::int8_t>();
    case DType::UInt8:
      return function.template operator()<std::uint8_t>();
    case DType::Int16:
      return function.template operator()<std::int16_t>();
    case DType::Int32:
      return function.template operator()<std::int32_t>();
    case DType::Int64:
      return function.template operator()<std::int64_t>();
    case DType::Bool:
      return function.template operator()<Boolean>();
    case DType::Float16:
      return function.template operator()<__half>();
    case DType::BFloat16:
      return function.template operator()<__nv_bfloat16>();
    case DType::Float32:
      return function.template operator()<float>();
    case DType::Float64:
      return function.template operator()<double>();
  }
}

/// Calls function.template operator()<T>() with an integer type as wide as the dtype's elements.
template <class Function>
void with_copy_type(DType dtype, Function&& function) {
  switch (element_bytes(dtype)) {
    case 8:
      return function.template operator()<std::int64_t>();
    case 4:
      return function.template operator()<std::int32_t>();
    case 2:
      return function.template operator()<std::int16_t>();
    default:
      return function.template operator()<std::uint8_t>();
  }
}

}  // namespace tersum::gpu
