// The job of tersum-run: all ranks of one host, from start to end.
#pragma once

#include <chrono>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tersum::tools {

struct JobOptions {
  int ranks = 1;
  std::vector<std::string> command;
  std::vector<std::pair<std::string, std::string>> environment;  ///< for all ranks
  bool prefix = true;
  std::chrono::milliseconds grace{800};  ///< from the first failure until the others are ended
};

/// True if run_job() gives every rank a value of its own making for this variable.
bool is_set_by_job(std::string_view variable) noexcept;

/// Runs the job and returns the exit code of tersum-run: 0, or the code of the first rank that
/// failed (128 + signal if one ended it), or 127 (126) if the program does not exist (cannot be
/// run); 1 if all went well but output of the ranks could not be written. When it returns no
/// process of the job is left. Call it once in a process without threads: it takes over its signals
/// and its children.
int run_job(const JobOptions& options);

}  // namespace tersum::tools
