// The command line of collectives_cuda.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "cuda/collectives.hpp"
#include "tersum/types.hpp"

namespace tersum::gpu {

/// One way of ours to be measured.
struct Variant {
  std::string name = "tersum";
  Algorithm algorithm = Algorithm::Auto;
  PeerSettings settings;
};

struct Options {
  int ranks = 2;
  std::size_t min_bytes = 1 << 10, max_bytes = std::size_t{1} << 30;
  int factor = 4;
  int graph_ops = 50;
  int repeats = 7;
  bool eager = false;
  bool nccl = false;
  std::string nccl_library;  ///< empty: searched for
  std::vector<std::string> collectives{"all_reduce"};
  DType dtype = DType::Float32;
  std::string json;
  std::vector<Variant> variants;
};

/// Error InvalidArgument for what is not understood.
Options parse(int argc, char** argv);

}  // namespace tersum::gpu
