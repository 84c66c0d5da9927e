// Reduction arithmetic: how elements of ranks are combined, in which precision, and how the result
// is rounded.
#pragma once

#include <cstddef>

#include "tersum/types.hpp"

namespace tersum::runtime {

/// True for 16-bit floats, whose partial sums are fp32.
constexpr bool is_half(DType dtype) noexcept {
  return dtype == DType::Float16 || dtype == DType::BFloat16;
}

/// One (dtype, operator) with its accumulator: fp32 for fp16, bf16 and fp32; fp64 for fp64; the
/// type itself for integers (sums and products wrap), but wide enough to be exact for averages of
/// integers. Averages divide once, in the accumulator. Stateless; any thread. Arrays must not
/// overlap.
class Arithmetic {
 public:
  /// Error InvalidArgument for pairs that have no meaning (average of bool).
  Arithmetic(DType dtype, ReduceOp op);

  DType dtype() const noexcept { return dtype_; }
  std::size_t accumulator_bytes() const noexcept { return accumulator_bytes_; }  ///< of one element
  /// True if accumulators are elements of dtype, so that partial results may travel between ranks.
  bool accumulates_in_place() const noexcept { return in_place_; }

  /// acc[count] = scale * in[count]
  void load(void* acc, const void* in, std::size_t count, double scale) const;
  /// acc[count] = acc op scale * in[count]
  void combine(void* acc, const void* in, std::size_t count, double scale) const;
  /// acc[count] = acc op other, or other op acc if `other_first` (the same but for NaN payloads and
  /// signed zeros)
  void merge(void* acc, const void* other, std::size_t count, bool other_first) const;
  /// out[count] = scale * acc, divided by `ranks` for averages, rounded to dtype. acc is
  /// overwritten; out may be acc.
  void store(void* acc, void* out, std::size_t count, int ranks, double scale) const;

 private:
  DType dtype_;
  ReduceOp op_;
  std::size_t accumulator_bytes_;
  bool in_place_;
};

}  // namespace tersum::runtime
