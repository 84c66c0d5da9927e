// Notices at once when a process on this host dies: over shared memory no connection breaks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tersum::transport {

/// A process, as it describes itself to others. Plain bytes: part of transport addresses.
struct ProcessIdentity {
  std::uint64_t host =
      0;  ///< of the boot and the pid namespace: pids mean the same where it is equal
  std::int64_t pid = -1;
  std::uint64_t started = 0;  ///< in clock ticks since boot, to tell a reused pid
};

ProcessIdentity this_process();

/// Watches peers' processes through pidfds, and sleeps for them together with one other descriptor.
/// For one thread.
class ProcessWatch {
 public:
  /// `other` becomes part of descriptor() and must live as long. Throws Error System.
  explicit ProcessWatch(int other);
  ~ProcessWatch();
  ProcessWatch(const ProcessWatch&) = delete;
  ProcessWatch& operator=(const ProcessWatch&) = delete;

  /// Watches `process` under the number `peer`. Does nothing for a process that cannot be seen from
  /// here (another host or pid namespace, a kernel before 5.3) and for this one itself.
  void add(int peer, const ProcessIdentity& process);
  void remove(int peer) noexcept;

  /// Peers whose processes have ended and that were not removed yet. One system call, or none if
  /// nobody is watched.
  std::vector<int> ended();

  /// Readable when `other` is, or when a process has ended.
  int descriptor() const noexcept { return epoll_; }

 private:
  struct Watched {
    int peer;
    int descriptor;  // -1: it was gone before it could be watched
  };
  int epoll_ = -1;
  int pids_ = -1;  // an epoll of the pidfds alone
  std::vector<Watched> watched_;
  std::size_t gone_ = 0;  // of watched_, without a descriptor
};

}  // namespace tersum::transport
