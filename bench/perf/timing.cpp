#include "perf/timing.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <vector>

namespace tersum::perf {

Timing time_calls(Communicator& communicator, int warmup, int iterations,
                  const std::function<void(int)>& call, const std::function<void(int)>& prepare) {
  using Clock = std::chrono::steady_clock;
  std::vector<double> times;
  times.reserve(static_cast<std::size_t>(iterations));
  communicator.barrier().wait();
  for (int turn = 0; turn < warmup + iterations; ++turn) {
    if (prepare) prepare(turn);
    const auto start = Clock::now();
    call(turn);
    const std::chrono::duration<double, std::micro> time = Clock::now() - start;
    if (turn >= warmup) times.push_back(time.count());
  }
  communicator.all_reduce(times.data(), times.data(), times.size(), DType::Float64, ReduceOp::Max)
      .wait();
  std::sort(times.begin(), times.end());
  const std::size_t count = times.size();
  const auto p99 = static_cast<std::size_t>(std::ceil(0.99 * static_cast<double>(count))) - 1;
  return {(times[(count - 1) / 2] + times[count / 2]) / 2, times.front(), times[p99]};
}

}  // namespace tersum::perf
