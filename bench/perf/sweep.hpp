// One run: all sizes of one collective, checked and timed.
#pragma once

#include <string>
#include <utility>

#include "perf/options.hpp"
#include "tersum/communicator.hpp"

namespace tersum::perf {

/// The command line does not fit the job; thrown on all ranks.
class UsageError : public Error {
 public:
  explicit UsageError(std::string what) : Error(Code::InvalidArgument, std::move(what)) {}
};

/// Runs on all ranks of `communicator`; rank 0 prints. Returns true if no result was wrong.
/// Throws UsageError, or the Error of the call that failed.
bool run_sweep(Communicator& communicator, const Options& options);

}  // namespace tersum::perf
