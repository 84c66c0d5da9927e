// Ranks for tests and benchmarks of the collectives: processes of this program, or threads.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "cuda/peer_map.hpp"

namespace tersum::gpu {

/// The part of one rank. Copyable.
struct RankRole {
  int rank = 0;
  int size = 1;
  AllGatherBlobs all_gather;
};

/// True in a process that run_processes() started.
bool is_rank_process();
/// Its role. The all-gather runs through the process that started it and throws Error PeerLost when
/// a rank is gone.
RankRole rank_process_role();

/// What became of the ranks.
struct ProcessResults {
  std::vector<int> wait_status;  ///< [size], as waitpid() gives it
  bool timed_out = false;        ///< some were killed because time was over

  bool all_succeeded() const;
  std::string to_string() const;
};

/// Runs this program `size` times with `arguments`, serves their all-gathers and waits until they
/// have ended; kills what is left after `limit`. When rank `victim` (if >= 0) has taken part in
/// `gathers_before_kill` all-gathers, it gets `kill_signal` after `kill_delay`, and SIGKILL when
/// all others have ended, if it is still there.
struct ProcessPlan {
  int size = 2;
  std::vector<std::string> arguments;
  std::chrono::milliseconds limit{60'000};
  int victim = -1;
  int gathers_before_kill = 0;
  std::chrono::milliseconds kill_delay{0};
  int kill_signal = 9;
};
ProcessResults run_processes(const ProcessPlan& plan);

/// Runs `body` in `size` threads of this process; rethrows the first exception.
void run_threads(int size, const std::function<void(const RankRole&)>& body);

}  // namespace tersum::gpu
