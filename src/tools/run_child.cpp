#include "src/tools/run_child.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string_view>
#include <system_error>

namespace tersum::tools {
namespace {

[[noreturn]] void fail(int error, const std::string& what) {
  throw std::system_error(error, std::generic_category(), what);
}

/// Closes itself; both ends close-on-exec.
struct Pipe {
  std::array<int, 2> ends{-1, -1};

  explicit Pipe(bool wanted = true) {
    if (wanted && ::pipe2(ends.data(), O_CLOEXEC) != 0) fail(errno, "cannot make a pipe");
  }
  ~Pipe() {
    close(0);
    close(1);
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  void close(std::size_t end) {
    if (ends[end] >= 0) ::close(ends[end]);
    ends[end] = -1;
  }
  int release(std::size_t end) { return std::exchange(ends[end], -1); }
};

std::vector<std::string> merged_environment(
    const std::vector<std::pair<std::string, std::string>>& changes,
    const std::vector<std::pair<std::string, std::string>>& defaults) {
  std::vector<std::string> merged;
  for (char** entry = environ; *entry; ++entry) {
    const std::string_view text = *entry;
    bool changed = false;
    for (const auto& [name, value] : changes) {
      changed |= text.starts_with(name) && text.substr(name.size(), 1) == "=";
    }
    if (!changed) merged.emplace_back(text);
  }
  for (std::size_t i = 0; i < changes.size(); ++i) {
    bool again = false;  // the last one counts
    for (std::size_t j = i + 1; j < changes.size(); ++j) {
      again |= changes[j].first == changes[i].first;
    }
    if (!again) merged.push_back(changes[i].first + "=" + changes[i].second);
  }
  for (const auto& [name, value] : defaults) {
    const bool set = std::ranges::any_of(
        merged, [&](const std::string& entry) { return entry.starts_with(name + "="); });
    if (!set) merged.push_back(name + "=" + value);
  }
  return merged;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (std::string& text : texts) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

/// Everything between fork and exec: only calls that are safe there. Returns only on failure.
void become(char* const* arguments, char* const* environment, const ChildOptions& options,
            const Pipe& output, const Pipe& error, pid_t parent) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(127);  // the parent died before the line above
  if (!options.inherit_stdin) {
    const int null = ::open("/dev/null", O_RDONLY);
    if (null < 0 || ::dup2(null, STDIN_FILENO) < 0) return;
    if (null != STDIN_FILENO) ::close(null);
  }
  if (!options.inherit_output &&
      (::dup2(output.ends[1], STDOUT_FILENO) < 0 || ::dup2(error.ends[1], STDERR_FILENO) < 0)) {
    return;
  }
  ::signal(SIGPIPE, SIG_DFL);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  ::execvpe(arguments[0], arguments, environment);
}

}  // namespace

Child start_child(const ChildOptions& options) {
  std::vector<std::string> command = options.command;
  std::vector<std::string> environment = merged_environment(options.environment, options.defaults);
  const std::vector<char*> arguments = pointers(command);
  const std::vector<char*> variables = pointers(environment);
  Pipe output(!options.inherit_output);
  Pipe error(!options.inherit_output);
  Pipe failure;  // closed by exec, or carries errno

  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) fail(errno, "cannot fork");
  if (pid == 0) {
    become(arguments.data(), variables.data(), options, output, error, parent);
    const int why = errno;
    const ssize_t ignored = ::write(failure.ends[1], &why, sizeof(why));
    ::_exit(ignored == sizeof(why) ? 127 : 126);
  }
  ::setpgid(pid, pid);  // whoever comes first; after it, signals to the group reach the child
  failure.close(1);
  int why = 0;
  ssize_t count;
  do {
    count = ::read(failure.ends[0], &why, sizeof(why));
  } while (count < 0 && errno == EINTR);
  if (count == sizeof(why)) {
    ::waitpid(pid, nullptr, 0);
    fail(why, options.command.front());
  }
  for (Pipe* pipe : {&output, &error}) {
    if (pipe->ends[0] >= 0) ::fcntl(pipe->ends[0], F_SETFL, O_NONBLOCK);
  }
  return {pid, output.release(0), error.release(0)};
}

}  // namespace tersum::tools
