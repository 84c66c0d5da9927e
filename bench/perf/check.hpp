// The separate pass in which every result is looked at.
#pragma once

#include <cstddef>
#include <cstdint>

#include "perf/buffers.hpp"
#include "perf/problem.hpp"

namespace tersum::perf {

/// How a call is checked.
struct CheckMode {
  bool in_place = false;
  /// Buffers start one element beyond their alignment.
  bool shifted = false;
};

/// Makes one call on fresh data of `round` and returns how many elements are wrong on this rank:
/// results that are not as they should be, inputs that were changed, memory beside the buffers that
/// was written (one byte counts as one element). Both rings must be cut for the size.
std::int64_t check_call(const Problem& problem, const Shape& shape, const CheckMode& mode,
                        std::uint64_t round, BufferRing& inputs, BufferRing& outputs,
                        const Call& call);

/// Makes one barrier, for which rank round % ranks is late, and returns 1 if this rank has left it
/// before the last one came. Only where all ranks share a clock, that is, a host.
std::int64_t check_barrier(Communicator& communicator, std::uint64_t round);

}  // namespace tersum::perf
