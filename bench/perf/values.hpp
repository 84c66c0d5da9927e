// Test data that every rank can compute for every other rank, and what a collective must make of
// it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tersum/types.hpp"

namespace tersum::perf {

/// Source of a Segment that is the reduction over all ranks.
inline constexpr int kAllRanks = -1;

/// A piece of a result: elements [at, at + count) of the output are elements [source_at, ...) of
/// rank `source`'s input, or of the reduction of all inputs.
struct Segment {
  std::size_t at = 0;
  std::size_t count = 0;
  int source = kAllRanks;
  std::size_t source_at = 0;
};

/// The inputs of all ranks in one round: small integers drawn by a counter hash of (round, rank,
/// index), so small that sums over `ranks` are exact in every floating type (as long as there are
/// not too many ranks for it), and factors of which products are exact. Integer sums and products
/// wrap. Immutable; any thread.
class Values {
 public:
  Values(DType dtype, ReduceOp op, int ranks, std::uint64_t round);

  /// data[count] = elements [at, at + count) of the input of `rank`.
  void fill(void* data, int rank, std::size_t at, std::size_t count) const;

  /// How many elements of data[segment.count] are not what `segment` says. Exact, but for averages
  /// of floating types and sums over more ranks than the type can count: there an error of one unit
  /// in the last place is allowed.
  std::int64_t wrong(const void* data, const Segment& segment) const;

  /// The input of `rank` at `index`, before it is converted to the element type.
  std::int64_t number(int rank, std::size_t index) const noexcept;

  /// False where wrong() allows for rounding.
  bool exact() const noexcept { return exact_; }

 private:
  enum class Kind { Uniform, Factors, RareOnes, RareZeros };

  template <class Element>
  std::int64_t wrong_copies(const void* data, const Segment& segment) const;
  template <class Element, ReduceOp op>
  std::int64_t wrong_reductions(const void* data, const Segment& segment) const;
  template <class Element>
  std::int64_t dispatch_wrong(const void* data, const Segment& segment) const;

  DType dtype_;
  ReduceOp op_;
  int ranks_;
  Kind kind_ = Kind::Uniform;
  std::int64_t low_ = 0;    // Uniform: the least value,
  std::uint64_t span_ = 1;  // and how many there are
  std::int64_t factor_ = 1;
  bool exact_ = true;
  std::vector<std::uint64_t> bases_;  // hash of (round, rank)
};

/// The counter hash behind it, for other data of the kind.
constexpr std::uint64_t mix_bits(std::uint64_t x) noexcept {
  x ^= x >> 32;
  x *= 0xd6e8feb86659fd93u;
  x ^= x >> 29;
  x *= 0x9e3779b97f4a7c15u;
  x ^= x >> 32;
  return x;
}

}  // namespace tersum::perf
