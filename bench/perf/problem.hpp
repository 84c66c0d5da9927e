// What is measured: the collectives, and what one call of each takes and must give.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "perf/values.hpp"
#include "tersum/communicator.hpp"
#include "tersum/types.hpp"

namespace tersum::perf {

enum class Collective {
  AllReduce,
  ReduceScatter,
  AllGather,
  AllGatherV,
  Broadcast,
  Reduce,
  AllToAll,
  AllToAllV,
  SendReceive,
  Barrier,
};

/// Constant properties of a collective.
struct CollectiveTraits {
  Collective collective;
  std::string_view name;  ///< "all_reduce"
  bool reduces;           ///< has an operator
  bool rooted;            ///< has a root
  bool out_of_place;      ///< what the interface offers
  bool in_place;
};

/// By name, with or without underscores: "allreduce", "all_reduce". Error InvalidArgument for any
/// other.
const CollectiveTraits& find_collective(std::string_view name);

/// All names, for help texts: "allreduce, reducescatter, ...".
std::string collective_names();

/// Bytes moved by the busiest link for each byte of the size, as in nccl-tests: bus bandwidth =
/// algorithm bandwidth * factor.
double bus_factor(Collective collective, int ranks);

/// What all calls of one run have in common.
struct Problem {
  const CollectiveTraits* traits = nullptr;
  DType dtype = DType::Float32;
  ReduceOp op = ReduceOp::Sum;
  int root = 0;
  int rank = 0;
  int ranks = 1;
};

/// One call's arguments and result on this rank. Offsets and counts in elements. In place, input
/// and output lie in one buffer of whole_count elements, at input_at and output_at.
struct Shape {
  std::size_t size_bytes = 0;  ///< as nccl-tests reports it: the larger of input and output
  std::size_t count = 0;       ///< the call's count argument; of v variants the largest part
  std::size_t input_count = 0, output_count = 0;
  std::size_t whole_count = 0, input_at = 0, output_at = 0;
  std::vector<std::size_t> send_counts, receive_counts;  ///< v variants
  std::vector<Segment> result;                           ///< what the output must be
};

/// The shape for a total of `elements`; parts that do not divide evenly are rounded down.
Shape make_shape(const Problem& problem, std::size_t elements);

/// Starts one call; throws its Error.
using Start = std::function<Work(const Shape& shape, const void* input, void* output)>;
Start make_start(const Communicator& communicator, const Problem& problem, Stream stream = {});

/// Makes one call and waits for it; throws its Error.
using Call = std::function<void(const Shape& shape, const void* input, void* output)>;
Call make_call(const Communicator& communicator, const Problem& problem);

}  // namespace tersum::perf
