#include "transport/launch.hpp"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <limits>
#include <utility>
#include <vector>

#include "tersum/error.hpp"
#include "transport/slurm.hpp"

namespace tersum::transport {
namespace {

constexpr int kMaxRanks = 65536;
constexpr const char* kRootRemedy = "set TERSUM_ROOT=host:port";

[[noreturn]] void reject(const std::string& message) {
  throw Error(Code::InvalidArgument, message);
}

/// One launcher's names for the same four numbers; its ids of the job seed a port.
struct Launcher {
  const char* source;
  const char* rank;
  const char* size;
  const char* local_rank;
  const char* local_size;
  std::vector<const char*> ids;
};

const Launcher kTorchrun{"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", {}};
const Launcher kOpenMpi{"openmpi",
                        "OMPI_COMM_WORLD_RANK",
                        "OMPI_COMM_WORLD_SIZE",
                        "OMPI_COMM_WORLD_LOCAL_RANK",
                        "OMPI_COMM_WORLD_LOCAL_SIZE",
                        {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"}};
const Launcher kMpich{"mpich",           "PMI_RANK",        "PMI_SIZE",
                      "MPI_LOCALRANKID", "MPI_LOCALNRANKS", {"PMI_JOBID"}};

class Detection {
 public:
  Detection(const LaunchOverrides& overrides, const Environment& environment)
      : overrides_(overrides), environment_(environment) {}

  Launch run() {
    Launch launch = find();
    apply_overrides(launch);
    check(launch);
    return launch;
  }

 private:
  Launch find();
  bool complete(const Launcher& launcher) const;
  Launch read(const Launcher& launcher) const;
  Launch read_slurm() const;
  bool slurm_is_complete() const;
  bool slurm_says_the_same(const Launcher& launcher) const;
  void read_master(Launch& launch) const;
  void find_root(Launch& launch, const std::vector<const char*>& ids) const;
  std::uint16_t derived_port(const std::string& source, const std::vector<const char*>& ids) const;
  void apply_overrides(Launch& launch) const;
  void check(const Launch& launch) const;
  void reject_half_set() const;

  bool has(const std::string& name) const { return environment_(name).has_value(); }
  std::string text(const std::string& name) const { return environment_(name).value_or(""); }
  int number(const std::string& name, int minimum, int maximum) const;
  void both_or_none(const std::string& a, const std::string& b) const;

  const LaunchOverrides& overrides_;
  const Environment& environment_;
};

int Detection::number(const std::string& name, int minimum, int maximum) const {
  const std::string value = text(name);
  int result = 0;
  const char* end = value.data() + value.size();
  const auto [rest, error] = std::from_chars(value.data(), end, result);
  if (error != std::errc{} || rest != end || result < minimum || result > maximum) {
    reject(name + "='" + value + "' is not a whole number from " + std::to_string(minimum) +
           " to " + std::to_string(maximum));
  }
  return result;
}

void Detection::both_or_none(const std::string& a, const std::string& b) const {
  if (has(a) != has(b)) {
    const std::string& set = has(a) ? a : b;
    const std::string& missing = has(a) ? b : a;
    reject(set + " is set but " + missing + " is not: set both or none");
  }
}

bool Detection::complete(const Launcher& launcher) const {
  return has(launcher.rank) && has(launcher.size);
}

Launch Detection::find() {
  if ((overrides_.rank >= 0) != (overrides_.size >= 0)) {
    reject(overrides_.rank >= 0 ? "TERSUM_RANK is set but TERSUM_SIZE is not: set both or none"
                                : "TERSUM_SIZE is set but TERSUM_RANK is not: set both or none");
  }
  if (overrides_.rank >= 0) {
    Launch launch;
    launch.source = "tersum";
    launch.rank = overrides_.rank;
    launch.size = overrides_.size;
    return launch;
  }
  if (complete(kTorchrun)) {
    Launch launch = read(kTorchrun);
    read_master(launch);
    return launch;
  }
  for (const Launcher* launcher : {&kOpenMpi, &kMpich}) {
    if (!complete(*launcher)) continue;
    // srun speaks PMI too: then its own variables say more. Under an mpirun that was itself
    // started by srun, they describe the daemons and differ.
    if (slurm_says_the_same(*launcher)) return read_slurm();
    Launch launch = read(*launcher);
    find_root(launch, launcher->ids);
    return launch;
  }
  if (slurm_is_complete()) return read_slurm();
  reject_half_set();
  Launch alone;
  alone.source = "single";
  return alone;
}

Launch Detection::read(const Launcher& launcher) const {
  Launch launch;
  launch.source = launcher.source;
  launch.size = number(launcher.size, 1, kMaxRanks);
  launch.rank = number(launcher.rank, 0, kMaxRanks - 1);
  if (launch.rank >= launch.size) {
    reject(std::string(launcher.rank) + "=" + std::to_string(launch.rank) + " is not below " +
           launcher.size + "=" + std::to_string(launch.size));
  }
  if (overrides_.local_rank >= 0) return launch;
  both_or_none(launcher.local_rank, launcher.local_size);
  if (has(launcher.local_rank)) {
    launch.local_rank = number(launcher.local_rank, 0, kMaxRanks - 1);
    launch.local_size = number(launcher.local_size, 1, kMaxRanks);
    if (launch.local_rank >= launch.local_size || launch.local_size > launch.size) {
      reject(std::string(launcher.local_rank) + "=" + std::to_string(launch.local_rank) + ", " +
             launcher.local_size + "=" + std::to_string(launch.local_size) + " and " +
             launcher.size + "=" + std::to_string(launch.size) + " contradict each other");
    }
  }
  return launch;
}

void Detection::read_master(Launch& launch) const {
  both_or_none("MASTER_ADDR", "MASTER_PORT");
  if (!has("MASTER_ADDR")) return;
  launch.root_host = text("MASTER_ADDR");
  if (launch.root_host.empty()) reject("MASTER_ADDR is empty: " + std::string(kRootRemedy));
  launch.root_port = static_cast<std::uint16_t>(number("MASTER_PORT", 1, 65535));
}

void Detection::find_root(Launch& launch, const std::vector<const char*>& ids) const {
  if (!overrides_.root.empty()) return;
  // Scripts for PyTorch set these two by hand under any launcher.
  if (has("MASTER_ADDR") && has("MASTER_PORT")) return read_master(launch);
  const int local_size = overrides_.local_rank >= 0 ? overrides_.local_size : launch.local_size;
  if (launch.root_host.empty() && local_size == launch.size) launch.root_host = "127.0.0.1";
  if (!launch.root_host.empty()) launch.root_port = derived_port(launch.source, ids);
}

std::uint16_t Detection::derived_port(const std::string& source,
                                      const std::vector<const char*>& ids) const {
  // FNV-1a over what all ranks of a job, and no other job, have in common.
  std::uint64_t hash = 0xcbf29ce484222325ull;
  const auto mix = [&](const std::string& value) {
    for (const char c : value + '\n') {
      hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
    }
  };
  mix(source);
  mix(text("TERSUM_JOB"));
  for (const char* id : ids) mix(text(id));
  constexpr std::uint64_t kFirstPort = 20000;
  constexpr std::uint64_t kLastPort = 45000;
  return static_cast<std::uint16_t>(kFirstPort + hash % (kLastPort - kFirstPort + 1));
}

bool Detection::slurm_is_complete() const {
  // In an allocation without srun the numbers of tasks are set, but no process is one of them.
  return has("SLURM_PROCID") && (has("SLURM_STEP_NUM_TASKS") || has("SLURM_NTASKS"));
}

bool Detection::slurm_says_the_same(const Launcher& launcher) const {
  if (!slurm_is_complete()) return false;
  const std::string size = has("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS";
  return text("SLURM_PROCID") == text(launcher.rank) && text(size) == text(launcher.size) &&
         has("SLURM_LOCALID") && !has(launcher.local_rank);
}

Launch Detection::read_slurm() const {
  const char* size = has("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS";
  Launch launch = read({"slurm", "SLURM_PROCID", size, "", "", {}});
  if (has("SLURM_LOCALID") && overrides_.local_rank < 0) {
    launch.local_rank = number("SLURM_LOCALID", 0, kMaxRanks - 1);
    launch.local_size = slurm_local_size(environment_, launch.size);
    if (launch.local_rank >= launch.local_size || launch.local_size > launch.size) {
      reject("SLURM_LOCALID=" + std::to_string(launch.local_rank) + ", " +
             std::to_string(launch.local_size) + " tasks on this node and " + size + "=" +
             std::to_string(launch.size) + " contradict each other");
    }
  }
  for (const char* list : {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"}) {
    if (!has(list)) continue;
    launch.root_host = first_host(list, text(list));
    break;
  }
  find_root(launch, {"SLURM_JOB_ID", "SLURM_STEP_ID"});
  return launch;
}

void Detection::reject_half_set() const {
  both_or_none(kTorchrun.rank, kTorchrun.size);
  both_or_none(kOpenMpi.rank, kOpenMpi.size);
  both_or_none(kMpich.rank, kMpich.size);
  if (has("SLURM_PROCID")) {
    reject("SLURM_PROCID is set but neither SLURM_STEP_NUM_TASKS nor SLURM_NTASKS is");
  }
}

void Detection::apply_overrides(Launch& launch) const {
  if (!overrides_.root.empty()) {
    std::tie(launch.root_host, launch.root_port) = parse_endpoint(overrides_.root);
  }
  if ((overrides_.local_rank >= 0) != (overrides_.local_size >= 0)) {
    reject("TERSUM_LOCAL_RANK and TERSUM_LOCAL_SIZE must both be set or both be unset");
  }
  if (overrides_.local_rank >= 0) {
    launch.local_rank = overrides_.local_rank;
    launch.local_size = overrides_.local_size;
  } else if (launch.source == "tersum" &&
             (launch.root_host == "127.0.0.1" || launch.root_host == "::1" ||
              launch.root_host == "localhost")) {
    launch.local_rank = launch.rank;  // a job at a loopback address is a job on one host
    launch.local_size = launch.size;
  }
}

void Detection::check(const Launch& launch) const {
  const auto show = [](const char* name, int value) {
    return std::string(name) + "=" + std::to_string(value);
  };
  if (launch.source == "tersum" &&
      (launch.size < 1 || launch.size > kMaxRanks || launch.rank >= launch.size)) {
    reject(show("TERSUM_RANK", launch.rank) + " and " + show("TERSUM_SIZE", launch.size) +
           ": a rank is below the size, and the size is from 1 to " + std::to_string(kMaxRanks));
  }
  if (launch.local_size < 1 || launch.local_rank >= launch.local_size ||
      launch.local_size > launch.size) {
    reject(show("TERSUM_LOCAL_RANK", launch.local_rank) + " and " +
           show("TERSUM_LOCAL_SIZE", launch.local_size) + " contradict each other or the size " +
           std::to_string(launch.size));
  }
  if (launch.size > 1 && launch.root_port == 0) {
    const bool torchrun = launch.source == "torchrun";
    reject("the launcher (" + launch.source + ") does not say where rank 0 is: " + kRootRemedy +
           (torchrun ? ", or MASTER_ADDR and MASTER_PORT" : ""));
  }
}

}  // namespace

Launch detect_launch(const LaunchOverrides& overrides, const Environment& environment) {
  return Detection(overrides, environment).run();
}

Environment process_environment() {
  return [](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());
    return value ? std::optional<std::string>(value) : std::nullopt;
  };
}

std::pair<std::string, std::uint16_t> parse_endpoint(const std::string& text) {
  const auto wrong = [&](const std::string& why) {
    reject("'" + text + "' is not host:port (" + why + "); examples: node1:29500, [::1]:29500");
  };
  std::string host;
  std::string port;
  if (text.starts_with('[')) {
    const std::size_t end = text.find(']');
    if (end == std::string::npos) wrong("']' is missing");
    host = text.substr(1, end - 1);
    if (text.substr(end + 1, 1) != ":") wrong("the port is missing");
    port = text.substr(end + 2);
  } else {
    const std::size_t colon = text.find(':');
    if (colon == std::string::npos) wrong("the port is missing");
    if (text.find(':', colon + 1) != std::string::npos) wrong("an IPv6 address needs brackets");
    host = text.substr(0, colon);
    port = text.substr(colon + 1);
  }
  if (host.empty()) wrong("the host is missing");
  if (host.find_first_of(" \t\r\n") != std::string::npos) wrong("the host has a blank in it");
  unsigned value = 0;
  const auto [rest, error] = std::from_chars(port.data(), port.data() + port.size(), value);
  if (error != std::errc{} || rest != port.data() + port.size() || value < 1 || value > 65535) {
    wrong("the port must be a number from 1 to 65535");
  }
  return {host, static_cast<std::uint16_t>(value)};
}

}  // namespace tersum::transport
