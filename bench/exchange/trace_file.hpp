// Measured backward passes.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <vector>

namespace tersum::replay {

/// One gradient of a backward pass.
struct TracedGradient {
  std::string name;
  std::size_t count = 0;            ///< elements
  std::chrono::nanoseconds time{};  ///< from the gradient before it to this one
};

/// The rows of a CSV file with a header and the columns name, numel and gap_us, in the order in
/// which the backward pass made them. Error InvalidArgument names the line that is wrong.
std::vector<TracedGradient> read_trace(const std::string& path);

}  // namespace tersum::replay
