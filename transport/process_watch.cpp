#include "transport/process_watch.hpp"

#include <sys/epoll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>

#include "tersum/error.hpp"

namespace tersum::transport {

namespace {

/// Field 22 of /proc/<pid>/stat; 0 if there is no such process (any more).
std::uint64_t start_time(std::int64_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  // The second field is the program's name in parentheses, with whatever characters it has.
  std::size_t at = text.rfind(')');
  for (int field = 2; field < 22 && at != std::string::npos; ++field) at = text.find(' ', at + 1);
  if (at == std::string::npos) return 0;
  return std::strtoull(text.c_str() + at, nullptr, 10);
}

int open_pid(std::int64_t pid) {
#ifdef SYS_pidfd_open
  return static_cast<int>(syscall(SYS_pidfd_open, static_cast<pid_t>(pid), 0));
#else
  (void)pid;
  errno = ENOSYS;
  return -1;
#endif
}

int make_epoll() {
  const int descriptor = epoll_create1(EPOLL_CLOEXEC);
  if (descriptor < 0) throw Error(Code::System, std::string("epoll_create1: ") + strerror(errno));
  return descriptor;
}

void include(int epoll, int descriptor, int number) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = number;
  if (epoll_ctl(epoll, EPOLL_CTL_ADD, descriptor, &event) == 0) return;
  throw Error(Code::System, std::string("epoll_ctl: ") + strerror(errno));
}

}  // namespace

ProcessIdentity this_process() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  struct stat space {};
  ProcessIdentity self;
  // Without both there is no telling whether a pid is ours to watch; 0 says so.
  if (!boot.empty() && stat("/proc/self/ns/pid", &space) == 0) {
    self.host = std::hash<std::string>{}(boot + "/" + std::to_string(space.st_ino));
  }
  self.pid = getpid();
  self.started = start_time(self.pid);
  return self;
}

ProcessWatch::ProcessWatch(int other) {
  epoll_ = make_epoll();
  try {
    pids_ = make_epoll();
    include(epoll_, other, other);
    include(epoll_, pids_, pids_);
  } catch (...) {
    if (pids_ >= 0) ::close(pids_);
    ::close(epoll_);
    throw;
  }
}

ProcessWatch::~ProcessWatch() {
  for (const Watched& watched : watched_) {
    if (watched.descriptor >= 0) ::close(watched.descriptor);
  }
  ::close(pids_);
  ::close(epoll_);
}

void ProcessWatch::add(int peer, const ProcessIdentity& process) {
  const ProcessIdentity self = this_process();
  if (process.host != self.host || self.host == 0 || process.pid == self.pid) return;
  const int descriptor = open_pid(process.pid);
  if (descriptor < 0 && errno != ESRCH) return;  // no pidfds here
  // Only now is the pid pinned; who has it?
  if (descriptor < 0 || start_time(process.pid) != process.started) {
    if (descriptor >= 0) ::close(descriptor);
    watched_.push_back({peer, -1});
    ++gone_;
    return;
  }
  watched_.push_back({peer, descriptor});
  include(pids_, descriptor, peer);
}

void ProcessWatch::remove(int peer) noexcept {
  const auto at = std::find_if(watched_.begin(), watched_.end(),
                               [&](const Watched& watched) { return watched.peer == peer; });
  if (at == watched_.end()) return;
  if (at->descriptor >= 0) {
    ::close(at->descriptor);  // leaves the epoll with it
  } else {
    --gone_;
  }
  watched_.erase(at);
}

std::vector<int> ProcessWatch::ended() {
  std::vector<int> peers;
  if (watched_.empty()) return peers;
  if (gone_ > 0) {
    for (const Watched& watched : watched_) {
      if (watched.descriptor < 0) peers.push_back(watched.peer);
    }
  }
  std::array<epoll_event, 16> events{};
  const int count = epoll_wait(pids_, events.data(), static_cast<int>(events.size()), 0);
  for (int i = 0; i < count; ++i) peers.push_back(events[static_cast<std::size_t>(i)].data.fd);
  return peers;
}

}  // namespace tersum::transport
