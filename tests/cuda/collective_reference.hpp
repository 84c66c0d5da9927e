// What collectives must give, computed on the host, element by element and in rank order.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "cuda/collective_layout.hpp"
#include "tersum/types.hpp"

namespace tersum::gpu {

/// Bytes of a tensor on the host.
using HostTensor = std::vector<std::byte>;

template <class T>
inline constexpr bool kIsHalf = std::is_same_v<T, __half> || std::is_same_v<T, __nv_bfloat16>;

/// fp32 for 16-bit floats; integers so wide that nothing is lost.
template <class T>
using Wide =
    std::conditional_t<kIsHalf<T>, float,
                       std::conditional_t<std::is_floating_point_v<T>, T,
                                          std::conditional_t<std::is_same_v<T, std::int64_t>,
                                                             __int128, std::int64_t>>>;

template <class T>
Wide<T> to_wide(T value) {
  if constexpr (std::is_same_v<T, __half>) {
    return __half2float(value);
  } else if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    return __bfloat162float(value);
  } else {
    return static_cast<Wide<T>>(value);
  }
}

template <class T>
T from_wide(Wide<T> value) {
  if constexpr (std::is_same_v<T, __half>) {
    return __float2half_rn(value);
  } else if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    return __float2bfloat16_rn(value);
  } else {
    return static_cast<T>(value);
  }
}

/// Calls function.template operator()<T>(); bool is a byte of 0 or 1.
template <class Function>
void with_host_type(DType dtype, Function&& function) {
  switch (dtype) {
    case DType::Int8:
      return function.template operator()<std::int8_t>();
    case DType::UInt8:
    case DType::Bool:
      return function.template operator()<std::uint8_t>();
    case DType::Int16:
      return function.template operator()<std::int16_t>();
    case DType::Int32:
      return function.template operator()<std::int32_t>();
    case DType::Int64:
      return function.template operator()<std::int64_t>();
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

inline std::uint64_t mix_bits(std::uint64_t x) {
  x ^= x >> 33;
  x *= 0xff51afd7ed558ccdULL;
  x ^= x >> 33;
  x *= 0xc4ceb9fe1a85ec53ULL;
  return x ^ (x >> 33);
}

/// Values of `rank`: floats of both signs and several magnitudes, integers of all bit patterns and
/// some words that look as if nothing had arrived.
inline HostTensor make_values(DType dtype, std::size_t count, int rank, std::uint64_t seed) {
  HostTensor tensor(count * element_bytes(dtype));
  with_host_type(dtype, [&]<class T>() {
    for (std::size_t i = 0; i < count; ++i) {
      const std::uint64_t bits = mix_bits(seed * 1000003 + static_cast<std::uint64_t>(rank) * 7919 +
                                          static_cast<std::uint64_t>(i) * 104729 + 1);
      T value;
      if constexpr (kIsHalf<T> || std::is_floating_point_v<T>) {
        const double size = static_cast<double>(bits >> 40) / 16777216.0 * 2.0 - 1.0;
        value = from_wide<T>(static_cast<Wide<T>>(size * static_cast<double>(1 + bits % 5)));
      } else {
        const bool is_blank = sizeof(T) == 4 && bits % 50 == 0;
        value = static_cast<T>(dtype == DType::Bool ? bits & 1 : is_blank ? kBlank : bits);
      }
      std::memcpy(tensor.data() + i * sizeof(T), &value, sizeof(T));
    }
  });
  return tensor;
}

template <class W>
W combine_wide(W a, W b, ReduceOp op) {
  switch (op) {
    case ReduceOp::Sum:
    case ReduceOp::Average:
      return a + b;
    case ReduceOp::Product:
      if constexpr (std::is_integral_v<W> || std::is_same_v<W, __int128>) {
        return static_cast<W>(static_cast<unsigned __int128>(a) *
                              static_cast<unsigned __int128>(b));
      } else {
        return a * b;
      }
    case ReduceOp::Min:
      return b < a ? b : a;
    case ReduceOp::Max:
      return a < b ? b : a;
  }
  return a;
}

/// op over `tensors`, of which all have the same length.
inline HostTensor reduce_on_host(const std::vector<HostTensor>& tensors, DType dtype, ReduceOp op,
                                 double pre, double post) {
  HostTensor result(tensors[0].size());
  with_host_type(dtype, [&]<class T>() {
    using W = Wide<T>;
    for (std::size_t at = 0; at < result.size(); at += sizeof(T)) {
      W sum{};
      for (std::size_t rank = 0; rank < tensors.size(); ++rank) {
        T value;
        std::memcpy(&value, tensors[rank].data() + at, sizeof(T));
        W wide = to_wide(value);
        if constexpr (std::is_floating_point_v<W>) wide *= static_cast<W>(pre);
        sum = rank == 0 ? wide : combine_wide<W>(sum, wide, op);
      }
      if (op == ReduceOp::Average) sum /= static_cast<W>(tensors.size());
      if constexpr (std::is_floating_point_v<W>) sum *= static_cast<W>(post);
      T value = from_wide<T>(sum);
      if (dtype == DType::Bool) {
        if constexpr (std::is_same_v<T, std::uint8_t>) value = sum != 0 ? 1 : 0;
      }
      std::memcpy(result.data() + at, &value, sizeof(T));
    }
  });
  return result;
}

}  // namespace tersum::gpu
