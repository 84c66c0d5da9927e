// NCCL's calls for the same problem, to be measured beside ours.
#pragma once

#include <functional>
#include <string>

#include "perf/problem.hpp"
#include "tersum/communicator.hpp"

namespace tersum::perf {

struct Nccl {
  std::string version;  ///< "2.28.9"
  std::string library;  ///< its file
  /// Puts one call on device memory into the stream.
  std::function<void(const Shape& shape, const void* input, void* output)> start;
};

/// Joins NCCL's ranks with those of `communicator`, on the GPU that is current. `library`: its
/// file; empty: searched for. Collective; if one rank cannot, every rank gets an error: Unsupported
/// where there is no NCCL and where two ranks share a GPU.
Nccl join_nccl(Communicator& communicator, const Problem& problem, const std::string& library,
               Stream stream);

}  // namespace tersum::perf
