#include "perf/values.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "perf/elements.hpp"

namespace tersum::perf {
namespace {

constexpr double kLargestNumber = 1000;
constexpr int kRanksWithLargeFactors = 12;  // 2^12 is still exact, and finite, in fp16

template <class Element>
typename Element::Raw element_at(const void* data, std::size_t index) {
  typename Element::Raw raw;
  std::memcpy(&raw, static_cast<const std::byte*>(data) + index * sizeof(raw), sizeof(raw));
  return raw;
}

template <class Raw>
bool same_bits(Raw a, Raw b) {
  return std::memcmp(&a, &b, sizeof(Raw)) == 0;
}

template <ReduceOp op>
std::int64_t combine(std::int64_t a, std::int64_t b) {
  if constexpr (op == ReduceOp::Min) return std::min(a, b);
  if constexpr (op == ReduceOp::Max) return std::max(a, b);
  const auto x = static_cast<std::uint64_t>(a), y = static_cast<std::uint64_t>(b);
  return static_cast<std::int64_t>(op == ReduceOp::Product ? x * y : x + y);
}

}  // namespace

Values::Values(DType dtype, ReduceOp op, int ranks, std::uint64_t round)
    : dtype_(dtype), op_(op), ranks_(ranks) {
  for (int rank = 0; rank < ranks; ++rank) {
    bases_.push_back(mix_bits(mix_bits(round + 1) + static_cast<std::uint64_t>(rank)));
  }
  double largest = dtype == DType::Int8 || dtype == DType::UInt8 ? 100 : kLargestNumber;
  with_element(dtype, [&](auto element) {
    using Element = decltype(element);
    if constexpr (Element::kFloating) {
      largest = std::clamp(std::floor(Element::kExactIntegers / ranks), 1.0, largest);
      const bool sums = op == ReduceOp::Sum || op == ReduceOp::Average;
      exact_ = op != ReduceOp::Average && (!sums || largest * ranks <= Element::kExactIntegers);
    }
  });
  low_ = dtype == DType::UInt8 ? 0 : -static_cast<std::int64_t>(largest);
  span_ = static_cast<std::uint64_t>(static_cast<std::int64_t>(largest) - low_ + 1);
  if (dtype == DType::Bool) {
    // About one rank in ranks + 1 decides the result, which so has both values in it.
    const bool any = op == ReduceOp::Sum || op == ReduceOp::Max;
    kind_ = any ? Kind::RareOnes : Kind::RareZeros;
    span_ = static_cast<std::uint64_t>(ranks) + 1;
  } else if (op == ReduceOp::Product) {
    kind_ = Kind::Factors;
    factor_ = is_floating(dtype) ? 2 : 3;  // odd: integers wrap but do not become zero
  }
}

std::int64_t Values::number(int rank, std::size_t index) const noexcept {
  const std::uint64_t hash =
      mix_bits(bases_[static_cast<std::size_t>(rank)] + index * 0x9e3779b97f4a7c15u);
  const std::uint64_t drawn = (hash >> 32) * span_ >> 32;
  switch (kind_) {
    case Kind::Uniform:
      return low_ + static_cast<std::int64_t>(drawn);
    case Kind::RareOnes:
      return drawn == 0 ? 1 : 0;
    case Kind::RareZeros:
      return drawn == 0 ? 0 : 1;
    case Kind::Factors: {
      const std::int64_t sign = (hash & 1) != 0 ? -1 : 1;
      return (hash & 2) != 0 && rank < kRanksWithLargeFactors ? sign * factor_ : sign;
    }
  }
  return 0;
}

void Values::fill(void* data, int rank, std::size_t at, std::size_t count) const {
  with_element(dtype_, [&](auto element) {
    using Element = decltype(element);
    auto* bytes = static_cast<std::byte*>(data);
    for (std::size_t i = 0; i < count; ++i) {
      const auto raw = Element::encode(number(rank, at + i));
      std::memcpy(bytes + i * sizeof(raw), &raw, sizeof(raw));
    }
  });
}

template <class Element>
std::int64_t Values::wrong_copies(const void* data, const Segment& segment) const {
  std::int64_t wrong = 0;
  for (std::size_t i = 0; i < segment.count; ++i) {
    const auto expected = Element::encode(number(segment.source, segment.source_at + i));
    wrong += same_bits(element_at<Element>(data, i), expected) ? 0 : 1;
  }
  return wrong;
}

template <class Element, ReduceOp op>
std::int64_t Values::wrong_reductions(const void* data, const Segment& segment) const {
  std::int64_t wrong = 0;
  for (std::size_t i = 0; i < segment.count; ++i) {
    std::int64_t reduced = number(0, segment.source_at + i);
    for (int rank = 1; rank < ranks_; ++rank) {
      reduced = combine<op>(reduced, number(rank, segment.source_at + i));
    }
    const auto found = element_at<Element>(data, i);
    if (exact_) {
      if constexpr (op == ReduceOp::Average) reduced /= ranks_;
      wrong += same_bits(found, Element::encode(reduced)) ? 0 : 1;
    } else {
      const double expected = static_cast<double>(reduced) / (op == ReduceOp::Average ? ranks_ : 1);
      const double error = std::fabs(Element::decode(found) - expected);
      wrong += error <= Element::kEpsilon * std::fabs(expected) ? 0 : 1;
    }
  }
  return wrong;
}

template <class Element>
std::int64_t Values::dispatch_wrong(const void* data, const Segment& segment) const {
  if (segment.source != kAllRanks) return wrong_copies<Element>(data, segment);
  switch (op_) {
    case ReduceOp::Sum:
      return wrong_reductions<Element, ReduceOp::Sum>(data, segment);
    case ReduceOp::Average:
      return wrong_reductions<Element, ReduceOp::Average>(data, segment);
    case ReduceOp::Min:
      return wrong_reductions<Element, ReduceOp::Min>(data, segment);
    case ReduceOp::Max:
      return wrong_reductions<Element, ReduceOp::Max>(data, segment);
    case ReduceOp::Product:
      return wrong_reductions<Element, ReduceOp::Product>(data, segment);
  }
  return static_cast<std::int64_t>(segment.count);
}

std::int64_t Values::wrong(const void* data, const Segment& segment) const {
  return with_element(
      dtype_, [&](auto element) { return dispatch_wrong<decltype(element)>(data, segment); });
}

}  // namespace tersum::perf
