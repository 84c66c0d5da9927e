// The wording of the join's errors.
#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace tersum::transport::control {

/// What differs between two "NAME=value" texts, by line, or empty: "NAME differs: rank 0 has 'a',
/// rank 2 has 'b'".
std::string settings_difference(const std::string& root_settings, const std::string& settings,
                                int rank);

/// "1500 ms", "60 s".
std::string duration_text(std::chrono::milliseconds duration);

/// "rank 3 of 4", "ranks 2, 3 of 4"; long lists are cut.
std::string name_ranks(const std::vector<int>& ranks, int size);

}  // namespace tersum::transport::control
