// What rank 0 prints, in the columns of nccl-tests, and the same as JSON.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "perf/compressed.hpp"
#include "perf/options.hpp"
#include "perf/timing.hpp"
#include "tersum/communicator.hpp"

namespace tersum::perf {

/// What the numbers depend on. The same on all ranks.
struct Environment {
  int ranks = 1;
  std::vector<std::string> hosts;  ///< of each rank
  std::string transport, algorithm, ucx, kernel, congestion_control;
  unsigned cores = 0;

  /// "alpha: 4 ranks, beta: 4 ranks".
  std::string placement() const;
  bool one_host() const;
};

/// Collective.
Environment gather_environment(Communicator& communicator);

/// The NCCL that ours is measured against; empty: none.
struct Peer {
  std::string version, library;
};

/// NCCL's part of a measurement.
struct Comparison {
  Timing timing;
  std::int64_t wrong = -1;  ///< summed over ranks; -1: not checked
};

/// One form of one size: out of place or in place.
struct Measurement {
  Timing timing;
  double wire_bytes = 0;    ///< sent by one rank in one call, mean over ranks
  std::int64_t wrong = -1;  ///< summed over ranks; -1: not checked
  std::optional<Comparison> nccl;
};

struct Row {
  std::size_t size_bytes = 0;
  std::size_t count = 0;
  std::optional<Measurement> out_of_place, in_place;
};

/// Prints if it is rank 0's, and counts on every rank.
class Report {
 public:
  /// Opens the JSON file at once. Error System if that cannot be.
  Report(const Options& options, const Environment& environment, bool prints);

  void header(const Peer& nccl = {});
  void add(const Row& row);
  void add(std::size_t elements, const CompressedResult& result);
  /// Prints the last lines and writes the JSON file. Returns true if nothing was wrong.
  bool finish();

 private:
  void print(const char* format, ...) __attribute__((format(printf, 2, 3)));
  void print_titles();
  nlohmann::ordered_json add_measurement(const Row& row,
                                         const std::optional<Measurement>& measurement);
  void add_comparison(const Measurement& measurement, nlohmann::ordered_json& json);
  std::string row_start(std::size_t size_bytes, std::size_t count) const;
  nlohmann::ordered_json timing_json(std::size_t size_bytes, const Timing& timing,
                                     const char* prefix);

  const Options& options_;
  const Environment& environment_;
  bool prints_;
  nlohmann::ordered_json document_;
  double bus_sum_ = 0;
  int bus_count_ = 0;
  std::int64_t wrong_ = 0;
  std::vector<double> ratios_;  ///< NCCL's time over ours
};

}  // namespace tersum::perf
