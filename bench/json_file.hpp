// What benchmarks leave for scripts/plot_results.py.
#pragma once

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "tersum/error.hpp"

namespace tersum {

/// Writes a document. Error System if the file cannot be written.
inline void write_json(const std::string& path, const nlohmann::ordered_json& document) {
  std::ofstream file(path);
  file << document.dump(1) << '\n';
  if (!file.flush()) throw Error(Code::System, "cannot write " + path);
}

}  // namespace tersum
