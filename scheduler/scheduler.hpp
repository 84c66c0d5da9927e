// When a slice is sent: the ready queue and the credit window. Pure and deterministic; time is
// handed in.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

namespace tersum::scheduler {

using Time = std::chrono::nanoseconds;  ///< since any fixed moment
using SliceId = std::uint32_t;

enum class Policy { Fifo, Priority };

struct SchedulerOptions {
  Policy policy = Policy::Priority;
  std::size_t credit_bytes = 8u << 20;
  /// A ready slice is overtaken by at most this many grants under credit of slices that became
  /// ready after it (starvation bound); 0 is fifo. Grants without credit (arrivals) count but do
  /// not wait.
  std::size_t overtakes = 64;
};

struct Grant {
  SliceId slice = 0;
  bool overdrawn = false;  ///< beyond the credit, because a peer has started it
};

/// Grants slices. A slice is ready once, granted once, done once in each round; then its id may be
/// used again. ByteScheduler's rule (Peng et al., SOSP 2019): a slice is granted whenever credit is
/// left, even if it is larger than what is left; so one larger than the whole credit still goes.
/// Every call is O(log n) in the slices that wait. Not thread-safe: one thread (the engine's) owns
/// it. A scheduler that was moved from may only be destroyed or assigned to.
class Scheduler {
 public:
  /// Error InvalidArgument for a credit of 0 bytes.
  explicit Scheduler(const SchedulerOptions& options);
  ~Scheduler();
  Scheduler(Scheduler&&) noexcept;
  Scheduler& operator=(Scheduler&&) noexcept;

  /// Everything in the slice has been submitted. `priority`: 0 is most urgent; among equals the one
  /// that became ready first goes first. Error InvalidState if the slice waits or is in flight.
  /// Policies by deadline will look at `now`; fifo and priority do not.
  void on_ready(SliceId slice, int priority, std::size_t bytes, Time now);

  /// A peer has started the slice: it is granted even without credit as soon as it is ready. May
  /// come before on_ready(), and more than once. Ignored for a slice that has been granted already
  /// in this round: a peer's start of a *later* round must be handed in after on_done().
  void on_arrival(SliceId slice);

  /// The slice that may start now, if any. Call until nullopt after every event. While credit is
  /// left: the longest waiting slice if it has been overtaken `overtakes` times, else the most
  /// urgent one. Without credit: the most urgent of those that a peer has started.
  std::optional<Grant> next(Time now);

  /// A granted slice has ended; its credit returns. Error InvalidState if it is not in flight.
  void on_done(SliceId slice);

  /// Forgets everything waiting and in flight, and all arrivals (after a failure).
  void reset();

  std::size_t in_flight_bytes() const noexcept;
  std::size_t waiting_count() const noexcept;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// "priority" or "fifo"; Error InvalidArgument otherwise.
Policy parse_policy(std::string_view text);

}  // namespace tersum::scheduler
