// Launch variables: who this process is in its job, as torchrun, Open MPI, MPICH/PMI, Slurm or
// Tersum says.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace tersum::transport {

struct Launch {
  int rank = 0;
  int size = 1;
  int local_rank = 0;
  int local_size = 1;
  std::string root_host;        ///< empty: the launcher does not say
  std::uint16_t root_port = 0;  ///< 0: the launcher does not say
  std::string source;           ///< "tersum", "torchrun", "openmpi", "mpich", "slurm" or "single"
};

/// Reads a variable; nullopt if it is not set.
using Environment = std::function<std::optional<std::string>(const std::string&)>;

/// Explicit TERSUM_* values first (given as members; -1 or empty: not given), then the first
/// launcher whose variables are complete. Error InvalidArgument if values are half set, out of
/// range or contradict each other; it names them.
struct LaunchOverrides {
  int rank = -1;
  int size = -1;
  int local_rank = -1;
  int local_size = -1;
  std::string root;  ///< "host:port"
};
Launch detect_launch(const LaunchOverrides& overrides, const Environment& environment);

/// The calling process's environment.
Environment process_environment();

/// Splits "host:port", "[v6]:port"; Error InvalidArgument says what is wrong.
std::pair<std::string, std::uint16_t> parse_endpoint(const std::string& text);

}  // namespace tersum::transport
