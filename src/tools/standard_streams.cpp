#include "src/tools/standard_streams.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

namespace tersum::tools {

void open_standard_streams() noexcept {
  for (const int descriptor : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(descriptor, F_GETFD) >= 0) continue;
    // All lower ones are open, so it becomes this one.
    if (::open("/dev/null", O_RDWR) < 0) return;
  }
}

int exit_code_after_output(const std::string& tool, int code) noexcept {
  errno = 0;
  const bool flushed = std::fflush(stdout) == 0;
  const int why = errno;
  if (flushed && std::ferror(stdout) == 0) return code;
  std::fprintf(stderr, "%s: cannot write the standard output%s%s\n", tool.c_str(),
               why != 0 ? ": " : "", why != 0 ? std::strerror(why) : "");
  return code == 0 ? 1 : code;
}

}  // namespace tersum::tools
