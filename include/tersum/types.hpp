// Element types, reduction operators, memory kinds and buffer views shared by all rooms.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace tersum {

/// Element type of a tensor. Values are part of the C ABI and of the wire format.
enum class DType : std::uint8_t {
  Int8 = 0,
  UInt8 = 1,
  Int16 = 2,
  Int32 = 3,
  Int64 = 4,
  Bool = 5,  ///< one byte, 0 or 1
  Float16 = 6,
  BFloat16 = 7,
  Float32 = 8,
  Float64 = 9,
};
inline constexpr int kDTypeCount = 10;

/// Bytes of one element; 0 for a value outside the enum.
constexpr std::size_t element_bytes(DType dtype) noexcept {
  switch (dtype) {
    case DType::Int8:
    case DType::UInt8:
    case DType::Bool:
      return 1;
    case DType::Int16:
    case DType::Float16:
    case DType::BFloat16:
      return 2;
    case DType::Int32:
    case DType::Float32:
      return 4;
    case DType::Int64:
    case DType::Float64:
      return 8;
  }
  return 0;
}

constexpr bool is_floating(DType dtype) noexcept {
  return dtype == DType::Float16 || dtype == DType::BFloat16 || dtype == DType::Float32 ||
         dtype == DType::Float64;
}

constexpr std::string_view to_string(DType dtype) noexcept {
  switch (dtype) {
    case DType::Int8:
      return "int8";
    case DType::UInt8:
      return "uint8";
    case DType::Int16:
      return "int16";
    case DType::Int32:
      return "int32";
    case DType::Int64:
      return "int64";
    case DType::Bool:
      return "bool";
    case DType::Float16:
      return "fp16";
    case DType::BFloat16:
      return "bf16";
    case DType::Float32:
      return "fp32";
    case DType::Float64:
      return "fp64";
  }
  return "unknown";
}

/// How elements of all ranks are combined. Values are part of the C ABI.
/// Bool: Sum and Max are "or", Product and Min are "and"; Average is refused.
/// Average of integers: the exact sum, divided by the number of ranks, rounded towards zero.
enum class ReduceOp : std::uint8_t { Sum = 0, Average = 1, Min = 2, Max = 3, Product = 4 };
inline constexpr int kReduceOpCount = 5;

constexpr std::string_view to_string(ReduceOp op) noexcept {
  switch (op) {
    case ReduceOp::Sum:
      return "sum";
    case ReduceOp::Average:
      return "average";
    case ReduceOp::Min:
      return "min";
    case ReduceOp::Max:
      return "max";
    case ReduceOp::Product:
      return "product";
  }
  return "unknown";
}

/// Where memory lives.
enum class MemoryType : std::uint8_t { Host = 0, Cuda = 1 };

/// A device stream as its framework gives it (cudaStream_t); null is the default stream.
/// Host memory needs none.
struct Stream {
  void* handle = nullptr;
};

/// Read-only view of bytes: the owner keeps the memory alive and unchanged while it is in use.
struct ConstBuffer {
  const void* data = nullptr;
  std::size_t bytes = 0;
  MemoryType memory = MemoryType::Host;
  void* registration = nullptr;  ///< the transport's handle of a long-lived buffer, or null
};

/// Writable view of bytes: the owner keeps the memory alive and untouched while it is in use.
struct Buffer {
  void* data = nullptr;
  std::size_t bytes = 0;
  MemoryType memory = MemoryType::Host;
  void* registration = nullptr;

  operator ConstBuffer() const noexcept { return {data, bytes, memory, registration}; }
};

}  // namespace tersum
