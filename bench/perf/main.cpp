// tersum-perf: time, bandwidth and correctness of a collective between the ranks of a job.
#include <cstdio>
#include <exception>
#include <filesystem>
#include <string>
#include <vector>

#include "perf/options.hpp"
#include "perf/sweep.hpp"
#include "src/tools/run_job.hpp"
#include "src/tools/standard_streams.hpp"
#include "tersum/communicator.hpp"
#include "transport/launch.hpp"

namespace {

using tersum::perf::Options;

/// Who this process is; throws Error if the launcher's variables contradict each other.
tersum::transport::Launch launch_of(const tersum::Config& config) {
  return tersum::transport::detect_launch(
      {config.rank, config.size, config.local_rank, config.local_size, config.root},
      tersum::transport::process_environment());
}

/// This program again, as all ranks of a job.
int start_ranks(const Options& options, const std::vector<std::string>& arguments) {
  tersum::tools::JobOptions job;
  job.ranks = options.ranks;
  job.prefix = false;
  job.command = {std::filesystem::read_symlink("/proc/self/exe").string()};
  job.command.insert(job.command.end(), arguments.begin(), arguments.end());
  return tersum::tools::run_job(job);
}

void complain(int rank, std::string what) {
  for (char& letter : what) {
    if (letter == '\n') letter = ' ';
  }
  std::fprintf(stderr, "tersum-perf: rank %d: %s\n", rank, what.c_str());
}

/// The exit code, but for output that could not be written.
int run(int count, char** argument_array) {
  const std::vector<std::string> arguments(argument_array + 1, argument_array + count);
  int rank = 0;
  try {
    const auto parsed = tersum::perf::parse_options(arguments);
    const tersum::Config config = parsed.options.apply(tersum::Config::from_environment());
    const auto launch = launch_of(config);
    rank = launch.rank;
    if (parsed.exit_code >= 0) {
      // All ranks have the same command line: one of them says what is wrong with it.
      if (rank == 0) std::fputs(parsed.text.c_str(), parsed.exit_code == 0 ? stdout : stderr);
      return parsed.exit_code;
    }
    if (launch.source == "single" && parsed.options.ranks > 0) {
      return start_ranks(parsed.options, arguments);
    }
    auto communicator = tersum::Communicator::connect(config);
    return tersum::perf::run_sweep(communicator, parsed.options) ? 0 : 1;
  } catch (const tersum::perf::UsageError& error) {
    if (rank == 0) complain(rank, error.status().message());
    return tersum::perf::kUsageExitCode;
  } catch (const std::exception& error) {
    complain(rank, error.what());
    return 1;
  }
}

}  // namespace

int main(int count, char** argument_array) {
  tersum::tools::open_standard_streams();
  return tersum::tools::exit_code_after_output("tersum-perf", run(count, argument_array));
}
