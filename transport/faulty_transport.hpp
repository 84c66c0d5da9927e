// A transport that misbehaves on purpose, around any other: for tests of what is built on
// transports.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "transport/transport.hpp"

namespace tersum::transport {

/// What goes wrong at one rank. All of it depends on the plan and the calls made, never on time, so
/// a run repeats. Messages are counted from 1, in the order in which they are posted.
struct FaultPlan {
  std::uint64_t seed = 1;  ///< of the delays
  /// Each message is held back for 0 to this many calls of progress().
  int max_delay = 0;
  /// Messages with different keys may overtake each other; those with equal keys never do.
  bool reorder = false;

  struct Drop {
    int peer = -1;
    std::uint64_t message = 0;
  };
  /// The n-th message to a peer vanishes: its send completes normally, its receiver waits in vain.
  std::vector<Drop> drops;

  /// From the n-th message of this rank on (counted over all peers) it is cut off: what it sends
  /// stays pending, what others send it vanishes, and nobody is told. 0: never.
  std::uint64_t silent_from = 0;

  struct Failure {
    int peer = -1;
    std::uint64_t progress_calls = 0;
  };
  /// At the n-th call of progress() (from 1) the connection to a peer breaks.
  std::vector<Failure> failures;
};

/// Takes over `inner`, which must not be connected yet.
std::unique_ptr<Transport> make_faulty_transport(std::unique_ptr<Transport> inner, FaultPlan plan);

}  // namespace tersum::transport
