// Turns: one order for all ranks in which slices launch kernels that wait for each other.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>

#include "src/engine/external_event.hpp"

namespace tersum::runtime {

/// Kernels that wait for each other must be put into streams in one order on all ranks, but slices
/// become ready in any. So the first rank of an operation gives out turns: a slice gets one when
/// all ranks have asked for it, and each rank launches in the order of the turns. No kernel waits
/// for a rank that has not come so far. The first rank says to all when it asks itself, which
/// starts the slice there even beyond their credit, as any message does: so every slice that one
/// rank has started gets its turn.
///
/// Engine's thread. The ranks are those that the operations send among (Operation::narrow()).
class Turns {
 public:
  /// Returns when it is this operation's turn; what is launched before the next await is in order,
  /// then comes pass(). `number` counts the turns of one operation.
  Task<> take(Operation& op, std::uint64_t number = 0);

  /// The turn is over: the next slice's begins. It may run inside this call.
  void pass();

  /// Ends all waiting, now and later, with Aborted.
  void abort() noexcept;
  /// Any thread.
  bool aborted() const noexcept { return aborted_; }

  /// As new, when nobody waits on any rank.
  void reset() noexcept;

 private:
  Task<std::uint64_t> ask(Operation& op, std::uint64_t hop);
  void check() const;

  std::uint64_t given_ = 0, taken_ = 0;
  std::map<std::uint64_t, ExternalEvent*> waiting_;
  std::atomic<bool> aborted_ = false;
};

}  // namespace tersum::runtime
