// Where a stream stops until the host lets it go on.
#pragma once

#include <cstdint>
#include <deque>
#include <mutex>

#include "cuda/buffer.hpp"
#include "cuda/stream.hpp"

namespace tersum::runtime {

/// A word of pinned memory that streams wait for and the host counts up: no kernel spins, and the
/// host is not blocked. Tickets are given in order, and streams pass in that order: a ticket that
/// is opened before an earlier one opens together with it. Whoever takes a ticket sees to it that
/// it is opened in the end, whatever fails: a stream that nobody lets go on never ends.
///
/// Other streams go on while one is held. But cudaFree() waits for it, and so do copies from or to
/// pageable memory while another thread of the process is in one that waits: who opens the gate
/// must do neither. bench/results/emulated_hosts-*.md has what was tried.
///
/// Any thread. After a moment without waiters the gate may be destroyed; that opens everything.
class StreamGate {
 public:
  using Ticket = std::uint32_t;

  /// For the device that is current now. Allocates pinned memory, which blocks. Error Unsupported
  /// if the driver cannot let streams wait for memory.
  StreamGate();
  ~StreamGate();
  StreamGate(const StreamGate&) = delete;
  StreamGate& operator=(const StreamGate&) = delete;

  /// The next ticket: they count up from 1, modulo 2^32.
  Ticket take();

  /// What is put into `stream` from now on starts when `ticket`, and all before it, have been
  /// opened. Error System if the driver refuses.
  void hold(gpu::StreamView stream, Ticket ticket) const;

  /// What the host has written before is visible to the work that goes on. Once for each ticket.
  void open(Ticket ticket) noexcept;

  /// Opens all tickets that have been taken, for good: open() ignores them then.
  void open_all() noexcept;

 private:
  void publish(Ticket ticket) noexcept;

  gpu::PinnedBuffer word_;
  std::mutex mutex_;
  Ticket taken_ = 0;
  Ticket passed_ = 0;        // all tickets up to this one are open
  std::deque<bool> opened_;  // tickets after passed_, in order
};

}  // namespace tersum::runtime
