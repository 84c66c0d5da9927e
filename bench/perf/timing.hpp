// Time of repeated calls, over all ranks.
#pragma once

#include <functional>

#include "tersum/communicator.hpp"

namespace tersum::perf {

/// Of the timed calls; each call takes as long as on its slowest rank.
struct Timing {
  double median_us = 0;
  double min_us = 0;
  double p99_us = 0;
};

/// Makes `warmup` calls, then `iterations` calls, one after the other and without barriers between
/// them, and takes the time of each. `call` gets the number of the call, from 0 on. `prepare` (may
/// be empty) runs before each call and is not timed. Collective: all ranks get the same result.
Timing time_calls(Communicator& communicator, int warmup, int iterations,
                  const std::function<void(int)>& call,
                  const std::function<void(int)>& prepare = {});

}  // namespace tersum::perf
