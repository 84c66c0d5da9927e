// One rank's process.
#pragma once

#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

namespace tersum::tools {

struct ChildOptions {
  std::vector<std::string> command;  ///< program and arguments; searched in PATH
  std::vector<std::pair<std::string, std::string>> environment;  ///< on top of this process's own
  std::vector<std::pair<std::string, std::string>> defaults;     ///< where neither has the variable
  bool inherit_stdin = false;                                    ///< otherwise /dev/null
  bool inherit_output = false;                                   ///< otherwise pipes
};

struct Child {
  pid_t pid = -1;
  int output = -1;  ///< read end, non-blocking; -1 if inherited
  int error = -1;
};

/// Starts a process in a process group of its own (its id is the pid); it dies when the caller
/// does. Signals are unblocked and SIGPIPE is as usual in it. Throws std::system_error with the
/// reason if it cannot be started.
Child start_child(const ChildOptions& options);

}  // namespace tersum::tools
