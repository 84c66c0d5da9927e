// How many elements sparse methods send; shared with their device twins.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace tersum::compressors {

/// How many elements of a gradient are sent: `k`, or if that is 0 a `ratio` of them.
struct KeepRule {
  double ratio = 0;
  std::size_t k = 0;

  /// max(1, ratio * count rounded half up), at most count; 0 for count 0.
  std::size_t kept(std::size_t count) const noexcept {
    if (k > 0 || count == 0) return std::min(k, count);
    const double wanted = std::floor(ratio * static_cast<double>(count) + 0.5);
    return std::clamp(static_cast<std::size_t>(wanted), std::size_t{1}, count);
  }
};

}  // namespace tersum::compressors
