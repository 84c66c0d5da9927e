// What rank 0 tells: header, progress, table, JSON.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>

#include "mnist/trainer.hpp"

namespace mnist {

/// The run as a whole; one JSON object.
struct Summary {
  std::string compressor;
  int epochs = 0;
  int ranks = 0;
  std::uint64_t seed = 0;
  EpochResult last_epoch;
  Cost cost;
  double seconds = 0.0;  ///< training and evaluation
  bool replicas_identical = false;
  std::uint64_t parameters_hash = 0;
  std::size_t parameters_count = 0;
};

/// Prints to stdout. On ranks other than 0 it says nothing.
class Report {
 public:
  /// Opens `json` at once (empty: none), so that a path which cannot be written fails before the
  /// training. Throws tersum::Error.
  Report(int rank, const std::filesystem::path& json);

  void header(const Summary& summary, const std::string& transport, std::size_t train_images,
              std::size_t test_images) const;
  /// A bar that is drawn over and over, on terminals only.
  void progress(int epoch, int epochs, std::size_t step, std::size_t steps) const;
  void epoch(int epoch, int epochs, const EpochResult& result) const;
  /// The table, and the JSON file. Throws tersum::Error if it cannot be written.
  void finish(const Summary& summary);

 private:
  const bool speaks_;
  const bool terminal_;
  const std::filesystem::path path_;
  std::ofstream json_;
};

}  // namespace mnist
