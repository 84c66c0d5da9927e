// The command line of tersum-perf.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "perf/problem.hpp"
#include "tersum/config.hpp"

namespace tersum::perf {

/// Exit code for a wrong command line.
inline constexpr int kUsageExitCode = 2;

struct Options {
  const CollectiveTraits* collective = nullptr;
  int ranks = 0;  ///< -n: start that many here; 0: join the launcher's job
  std::size_t min_bytes = 4;
  std::size_t max_bytes = 64u << 20;
  std::size_t factor = 2;
  int iterations = 20;
  int warmup = 5;
  DType dtype = DType::Float32;
  ReduceOp op = ReduceOp::Sum;
  int root = 0;
  bool check = true;
  bool out_of_place = true;  ///< false also where the collective has no such form
  bool in_place = true;
  std::string algorithm;      ///< empty: TERSUM_ALGORITHM
  std::string transport;      ///< empty: TERSUM_TRANSPORT
  std::string compressor;     ///< empty: the plain collective
  bool device = false;        ///< tensors in GPU memory, rank r on GPU r % GPUs
  bool graph = false;         ///< device: calls are captured into a graph
  bool compare_nccl = false;  ///< device: NCCL's calls on the same buffers, in turn with ours
  std::string nccl_library;   ///< its file; empty: searched for
  std::string json;           ///< file for rank 0's results; empty: none
  int timeout_ms = 0;         ///< 0: TERSUM_TIMEOUT_MS

  /// Sizes in bytes from min to max, by factor. A barrier has one size, 0.
  std::vector<std::size_t> sizes() const;
  /// `config` with what the command line says.
  Config apply(Config config) const;
};

/// Outcome of reading a command line: options, or text to print and an exit code.
struct ParsedOptions {
  Options options;
  int exit_code = -1;  ///< -1: go on
  std::string text;    ///< for stdout if exit_code is 0, else one line for stderr
};

/// Reads the arguments without the program's name.
ParsedOptions parse_options(const std::vector<std::string>& arguments);

}  // namespace tersum::perf
