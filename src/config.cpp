// The table of settings, and everything that follows from it: reading, checking, listing,
// comparing.
#include "src/config.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>

#include "compressors/text.hpp"
#include "src/rethrow.hpp"
#include "src/setting_kinds.hpp"

namespace tersum {
namespace {

using Kind = SettingKind;

constexpr std::int64_t kMaximumRanks = 65'536;
constexpr std::int64_t kDay = 86'400'000;      // milliseconds
constexpr std::int64_t kGiB = 1ll << 30;       // bytes
constexpr std::int64_t kTextLength = 4096;     // characters
constexpr std::int64_t kRulesLength = 16'384;  // characters

/// The one table. Order is that of the documentation.
const std::vector<SettingRow>& table() {
  static const std::vector<SettingRow> rows = {
      // clang-format off
      // variable, kind, member, must agree, minimum, maximum, choices, help
      {"TERSUM_RANK", Kind::Integer, &Config::rank, false, -1, kMaximumRanks - 1, {},
       "This process's rank; -1: from the launcher (tersum-run, torchrun, mpirun, srun)"},
      {"TERSUM_SIZE", Kind::Integer, &Config::size, false, -1, kMaximumRanks, {},
       "Number of ranks; -1: from the launcher, or 1"},
      {"TERSUM_LOCAL_RANK", Kind::Integer, &Config::local_rank, false, -1, kMaximumRanks - 1, {},
       "Rank among those of this host; -1: from the launcher"},
      {"TERSUM_LOCAL_SIZE", Kind::Integer, &Config::local_size, false, -1, kMaximumRanks, {},
       "Number of ranks on this host; -1: from the launcher"},
      {"TERSUM_ROOT", Kind::Endpoint, &Config::root, false, 0, 300, {},
       "Where rank 0 listens; empty: from the launcher"},
      {"TERSUM_JOB", Kind::Text, &Config::job, false, 1, 256, {},
       "Name of the job; ranks of different jobs refuse each other"},
      {"TERSUM_SECRET", Kind::Secret, &Config::secret, false, 0, kTextLength, {},
       "Shared secret that joining needs; never printed"},
      {"TERSUM_INTERFACE", Kind::Text, &Config::interface, false, 0, 15, {},
       "Network interface for control and data; empty: chosen"},
      {"TERSUM_HOST_ID", Kind::Text, &Config::host_id, false, 0, 256, {},
       "Ranks with the same id share a host; empty: the machine's own"},

      {"TERSUM_TRANSPORT", Kind::Choice, &Config::transport, false, 0, 0, {"auto", "tcp", "shm"},
       "How data moves; auto: shared memory inside a host, TCP between hosts"},
      {"TERSUM_DEVICE_STAGING", Kind::Choice, &Config::device_staging, true, 0, 0,
       {"auto", "pinned", "ucx"},
       "How device memory crosses hosts: through pinned memory, or given to UCX; auto: pinned"},
      {"TERSUM_SPIN_US", Kind::Microseconds, &Config::spin, false, -1, 1'000'000, {},
       "How long the engine spins before it sleeps; -1: by cores per local rank"},
      {"TERSUM_THREADS", Kind::Integer, &Config::threads, false, 0, 256, {},
       "Pool threads for compression and reduction; 0: the engine's thread does it"},
      {"TERSUM_TIMEOUT_MS", Kind::Milliseconds, &Config::timeout, false, 1, kDay, {},
       "Deadline of every operation"},
      {"TERSUM_JOIN_TIMEOUT_MS", Kind::Milliseconds, &Config::join_timeout, false, 1, kDay, {},
       "Deadline until which all ranks must have joined"},
      {"TERSUM_HEARTBEAT_TIMEOUT_MS", Kind::Milliseconds, &Config::heartbeat_timeout, false, 50,
       kDay, {}, "Silence of a rank that means that it hangs"},
      {"TERSUM_SHUTDOWN_TIMEOUT_MS", Kind::Milliseconds, &Config::shutdown_timeout, false, 1, kDay,
       {}, "Longest time to say good-bye to the other ranks"},
      {"TERSUM_ALGORITHM", Kind::Choice, &Config::algorithm, true, 0, 0,
       {"auto", "direct", "oneshot", "twoshot", "ring", "halving", "doubling"},
       "All-reduce algorithm; auto: by bytes and ranks"},

      {"TERSUM_COMPRESSOR", Kind::Spec, &Config::compressor, true, 1, kTextLength, {},
       "Compressor of all gradients that no rule names"},
      {"TERSUM_COMPRESSOR_RULES", Kind::Rules, &Config::compressor_rules, true, 0, kRulesLength, {},
       "Compressors by gradient name; the first pattern that matches wins"},
      {"TERSUM_COMPRESS_MIN_BYTES", Kind::Bytes, &Config::compress_min_bytes, true, 0, 1024 * kGiB,
       {}, "Smaller gradients are not compressed unless their own spec says so"},
      {"TERSUM_BUCKET_BYTES", Kind::Bytes, &Config::bucket_bytes, true, 1, 1024 * kGiB, {},
       "Gradients are fused up to this size"},
      {"TERSUM_SLICE_BYTES", Kind::Bytes, &Config::slice_bytes, true, 64, kGiB, {},
       "Buckets are cut into slices of about this size"},
      {"TERSUM_CREDIT_BYTES", Kind::Bytes, &Config::credit_bytes, false, 1, 1024 * kGiB, {},
       "Bytes of slices in flight at once"},
      {"TERSUM_DEVICE_SLICE_BYTES", Kind::Bytes, &Config::device_slice_bytes, true, 0, kGiB, {},
       "Slices when all gradients are on GPUs; 0: 32M inside a host, 16M between hosts"},
      {"TERSUM_DEVICE_CREDIT_BYTES", Kind::Bytes, &Config::device_credit_bytes, false, 0,
       1024 * kGiB, {},
       "Credit when all gradients are on GPUs; 0: 256M inside a host, 64M between hosts, "
       "where memory for its messages is pinned at once"},
      {"TERSUM_POLICY", Kind::Choice, &Config::policy, true, 0, 0, {"priority", "fifo"},
       "Which ready slice goes first: the one the next forward pass needs first, or the oldest"},
      {"TERSUM_SEED", Kind::Unsigned, &Config::seed, true, 0, 0, {},
       "Seed of all randomised methods"},

      {"TERSUM_TRACE", Kind::Text, &Config::trace, false, 0, kTextLength, {},
       "Directory for the timeline of all ranks (Chrome trace); empty: off"},
      {"TERSUM_LOG", Kind::Choice, &Config::log, false, 0, 0,
       {"trace", "debug", "info", "warn", "error", "off"}, "Least severe messages that are logged"},
      // clang-format on
  };
  return rows;
}

/// Variables of benchmarks and tests, which are no settings.
constexpr std::array<std::string_view, 2> kInternalPrefixes = {"TERSUM_BENCH_", "TERSUM_TEST_"};

bool is_internal(std::string_view variable) {
  return std::any_of(kInternalPrefixes.begin(), kInternalPrefixes.end(),
                     [&](std::string_view prefix) { return variable.starts_with(prefix); });
}

const SettingRow* find_row(std::string_view variable) {
  const auto row = std::find_if(table().begin(), table().end(),
                                [&](const SettingRow& r) { return r.variable == variable; });
  return row == table().end() ? nullptr : &*row;
}

std::string unknown_text(const std::string& variable) {
  std::vector<std::string> known;
  for (const SettingRow& row : table()) known.emplace_back(row.variable);
  return variable + ": unknown setting; did you mean " +
         compressors::nearest_word(variable, known) + "?";
}

/// What is wrong between members that are right one by one.
std::vector<std::string> contradictions(const Config& config) {
  std::vector<std::string> problems;
  const auto check = [&](const char* rank_name, int rank, const char* size_name, int size) {
    if (size == 0) problems.push_back(std::string(size_name) + ": 0 ranks make no job");
    if (size > 0 && rank >= size) {
      problems.push_back(std::string(rank_name) + "=" + std::to_string(rank) +
                         ": must be less than " + size_name + "=" + std::to_string(size));
    }
  };
  check("TERSUM_RANK", config.rank, "TERSUM_SIZE", config.size);
  check("TERSUM_LOCAL_RANK", config.local_rank, "TERSUM_LOCAL_SIZE", config.local_size);
  if (config.size > 0 && config.local_size > config.size) {
    problems.push_back("TERSUM_LOCAL_SIZE=" + std::to_string(config.local_size) +
                       ": must not exceed TERSUM_SIZE=" + std::to_string(config.size));
  }
  return problems;
}

std::vector<std::string> problems_of(const Config& config) {
  std::vector<std::string> problems;
  for (const SettingRow& row : table()) {
    if (auto problem = value_problem(row, config)) problems.push_back(std::move(*problem));
  }
  if (problems.empty()) problems = contradictions(config);
  return problems;
}

void throw_if_any(const std::vector<std::string>& problems) {
  if (problems.empty()) return;
  std::string text;
  for (const std::string& problem : problems) text += (text.empty() ? "" : "\n") + problem;
  throw Error(Code::InvalidArgument, text);
}

std::string shown_value(const SettingRow& row, const Config& config) {
  std::string text = value_text(row, config);
  if (row.kind == Kind::Secret && !text.empty()) return "***";
  return text;
}

}  // namespace

const char* cuda_connections() {
  static const std::optional<std::string> value = [] {
    const char* text = std::getenv("CUDA_DEVICE_MAX_CONNECTIONS");
    return text != nullptr ? std::optional<std::string>(text) : std::nullopt;
  }();
  return value ? value->c_str() : nullptr;
}

SettingsEnvironment read_settings_environment() {
  SettingsEnvironment environment;
  for (char** entry = ::environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const std::size_t equals = text.find('=');
    if (!text.starts_with("TERSUM_") || equals == std::string_view::npos) continue;
    environment.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return environment;
}

std::vector<std::string> apply_environment(const SettingsEnvironment& environment, Config& config) {
  std::vector<std::string> problems;
  for (const auto& [variable, text] : environment) {
    const SettingRow* row = find_row(variable);
    if (row == nullptr) {
      if (!is_internal(variable)) problems.push_back(unknown_text(variable));
      continue;
    }
    if (text.empty()) continue;
    Config candidate = config;
    if (!read_value(*row, text, candidate)) {
      problems.push_back(bad_value_text(*row, text));
    } else if (auto problem = value_problem(*row, candidate)) {
      problems.push_back(std::move(*problem));
    } else {
      config = std::move(candidate);
    }
  }
  if (problems.empty()) problems = contradictions(config);
  return problems;
}

Config config_from(const SettingsEnvironment& environment) {
  Config config;
  throw_if_any(apply_environment(environment, config));
  return config;
}

Config Config::from_environment() {
  try {
    return config_from(read_settings_environment());
  } catch (...) {
    rethrow_as_error("the settings cannot be read");
  }
}

void Config::validate() const {
  try {
    throw_if_any(problems_of(*this));
  } catch (...) {
    rethrow_as_error("the settings cannot be checked");
  }
}

std::vector<Setting> settings() {
  std::vector<Setting> result;
  const Config defaults;
  for (const SettingRow& row : table()) {
    result.push_back({std::string(row.variable), std::string(to_string(row.kind)),
                      allowed_text(row), value_text(row, defaults), std::string(row.help),
                      row.must_agree});
  }
  return result;
}

SettingValue setting_value(const Config& config, const std::string& variable,
                           const SettingsEnvironment& environment) {
  const SettingRow* row = find_row(variable);
  if (row == nullptr) throw Error(Code::InvalidArgument, unknown_text(variable));
  const std::string value = value_text(*row, config);
  const auto from_environment = environment.find(variable);
  if (from_environment != environment.end() && !from_environment->second.empty()) {
    Config parsed;
    if (read_value(*row, from_environment->second, parsed) && value_text(*row, parsed) == value) {
      return {shown_value(*row, config), "environment"};
    }
  }
  const bool is_default = value == value_text(*row, Config{});
  return {shown_value(*row, config), is_default ? "default" : "program"};
}

SettingValue setting_value(const Config& config, const std::string& variable) {
  return setting_value(config, variable, read_settings_environment());
}

std::string agreement_text(const Config& config) {
  std::string text;
  for (const SettingRow& row : table()) {
    if (row.must_agree) text += std::string(row.variable) + "=" + agreed_text(row, config) + "\n";
  }
  return text;
}

}  // namespace tersum
