// A discrete-event simulation of several ranks that exchange slices, each with a scheduler of its
// own. It knows nothing of bytes on a wire: only who may start what, and who waits for whom.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tersum::scheduler::testing {

/// How the start of a slice on one rank becomes known to the others.
enum class Spread {
  Direct,  ///< the first message goes to every peer
  Ring,    ///< it goes to the successor, which passes it on when it has started the slice itself
};

struct ExchangeScenario {
  std::uint64_t seed = 0;
  int ranks = 2;
  std::uint32_t slices = 1;
  int rounds = 1;  ///< each slice is exchanged this many times
  Spread spread = Spread::Direct;
  bool admit_arrivals = true;  ///< false: on_arrival() is never called (to show why it is needed)
};

struct ExchangeOutcome {
  std::size_t unfinished = 0;  ///< (rank, slice) pairs that still wait when nothing can happen
  std::size_t overdrawn = 0;   ///< grants beyond the credit
};

/// Runs until no event is left. Random, from the seed: credit (1 byte to more than all slices),
/// overtakes and policy; for each rank the priority, readiness and delays of every slice; the delay
/// of every message. A slice completes on a rank when every rank's start is known there.
ExchangeOutcome simulate_exchange(const ExchangeScenario& scenario);

}  // namespace tersum::scheduler::testing
