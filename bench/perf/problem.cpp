#include "perf/problem.hpp"

#include <algorithm>
#include <array>
#include <numeric>

namespace tersum::perf {
namespace {

constexpr std::array<CollectiveTraits, 10> kCollectives = {{
    // collective, name, reduces, rooted, out of place, in place
    {Collective::AllReduce, "all_reduce", true, false, true, true},
    {Collective::ReduceScatter, "reduce_scatter", true, false, true, true},
    {Collective::AllGather, "all_gather", false, false, true, true},
    {Collective::AllGatherV, "all_gather_v", false, false, true, true},
    {Collective::Broadcast, "broadcast", false, true, false, true},
    {Collective::Reduce, "reduce", true, true, true, true},
    {Collective::AllToAll, "all_to_all", false, false, true, false},
    {Collective::AllToAllV, "all_to_all_v", false, false, true, false},
    {Collective::SendReceive, "send_recv", false, false, true, false},
    {Collective::Barrier, "barrier", false, false, true, false},
}};

std::string without_underscores(std::string_view name) {
  std::string text(name);
  std::erase(text, '_');
  return text;
}

std::size_t sum(const std::vector<std::size_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), std::size_t{0});
}

/// Uneven parts of `elements`, one of them empty where there are three ranks or more.
std::vector<std::size_t> uneven_parts(std::size_t elements, int ranks) {
  std::vector<std::size_t> weights;
  for (int rank = 0; rank < ranks; ++rank) weights.push_back(static_cast<std::size_t>(rank % 3));
  if (ranks < 3)
    weights = ranks == 1 ? std::vector<std::size_t>{1} : std::vector<std::size_t>{1, 3};
  const std::size_t total = sum(weights);
  std::vector<std::size_t> counts;
  for (const std::size_t weight : weights) counts.push_back(elements / total * weight);
  counts.back() += elements - sum(counts);
  return counts;
}

/// What rank `from` sends to rank `to` in an uneven all-to-all: nothing to a full part.
std::size_t uneven_pair(std::size_t part, int from, int to) {
  const auto quarter = static_cast<std::size_t>((3 * from + 4 * to) % 5);
  return part / 4 * quarter + std::min(part % 4, quarter);
}

void shape_gather(Shape& shape, const Problem& problem) {
  std::size_t at = 0;
  for (int source = 0; source < problem.ranks; ++source) {
    const std::size_t count = shape.receive_counts[static_cast<std::size_t>(source)];
    if (source == problem.rank) shape.input_at = at;
    shape.result.push_back({at, count, source, 0});
    at += count;
  }
  shape.input_count = shape.receive_counts[static_cast<std::size_t>(problem.rank)];
  shape.output_count = shape.whole_count = at;
}

void shape_all_to_all(Shape& shape, const Problem& problem, std::size_t part) {
  const bool uneven = problem.traits->collective == Collective::AllToAllV;
  const auto pair = [&](int from, int to) { return uneven ? uneven_pair(part, from, to) : part; };
  std::size_t largest = 0, at = 0;
  for (int peer = 0; peer < problem.ranks; ++peer) {
    shape.send_counts.push_back(pair(problem.rank, peer));
    shape.receive_counts.push_back(pair(peer, problem.rank));
    std::size_t source_at = 0, sent = 0, received = 0;
    for (int other = 0; other < problem.ranks; ++other) {
      if (other < problem.rank) source_at += pair(peer, other);
      sent += pair(peer, other);
      received += pair(other, peer);
    }
    largest = std::max({largest, sent, received});
    shape.result.push_back({at, pair(peer, problem.rank), peer, source_at});
    at += pair(peer, problem.rank);
  }
  shape.input_count = sum(shape.send_counts);
  shape.output_count = at;
  shape.size_bytes = largest * element_bytes(problem.dtype);
}

}  // namespace

const CollectiveTraits& find_collective(std::string_view name) {
  const std::string wanted = without_underscores(name);
  for (const CollectiveTraits& traits : kCollectives) {
    if (without_underscores(traits.name) == wanted) return traits;
  }
  throw Error(Code::InvalidArgument,
              "unknown collective '" + std::string(name) + "': there are " + collective_names());
}

std::string collective_names() {
  std::string names;
  for (const CollectiveTraits& traits : kCollectives) {
    names += (names.empty() ? "" : ", ") + without_underscores(traits.name);
  }
  return names;
}

double bus_factor(Collective collective, int ranks) {
  switch (collective) {
    case Collective::AllReduce:
      return 2.0 * (ranks - 1) / ranks;
    case Collective::ReduceScatter:
    case Collective::AllGather:
    case Collective::AllGatherV:
    case Collective::AllToAll:
    case Collective::AllToAllV:
      return 1.0 * (ranks - 1) / ranks;
    case Collective::Broadcast:
    case Collective::Reduce:
    case Collective::SendReceive:
    case Collective::Barrier:
      return 1;
  }
  return 1;
}

Shape make_shape(const Problem& problem, std::size_t elements) {
  const auto ranks = static_cast<std::size_t>(problem.ranks);
  const auto rank = static_cast<std::size_t>(problem.rank);
  const std::size_t part = elements / ranks;
  Shape shape;
  shape.count = shape.input_count = shape.output_count = shape.whole_count = elements;
  switch (problem.traits->collective) {
    case Collective::AllReduce:
      shape.result = {{0, elements, kAllRanks, 0}};
      break;
    case Collective::ReduceScatter:
      shape.count = shape.output_count = part;
      shape.input_count = shape.whole_count = part * ranks;
      shape.output_at = part * rank;
      shape.result = {{0, part, kAllRanks, shape.output_at}};
      break;
    case Collective::AllGather:
      shape.count = part;
      shape.receive_counts.assign(ranks, part);
      shape_gather(shape, problem);
      break;
    case Collective::AllGatherV:
      shape.receive_counts = uneven_parts(elements, problem.ranks);
      shape.count = *std::max_element(shape.receive_counts.begin(), shape.receive_counts.end());
      shape_gather(shape, problem);
      break;
    case Collective::Broadcast:
      shape.result = {{0, elements, problem.root, 0}};
      break;
    case Collective::Reduce:
      if (problem.rank == problem.root) shape.result = {{0, elements, kAllRanks, 0}};
      break;
    case Collective::AllToAll:
    case Collective::AllToAllV:
      shape.count = part;
      shape_all_to_all(shape, problem, part);
      return shape;
    case Collective::SendReceive:
      shape.result = {{0, elements, (problem.rank + problem.ranks - 1) % problem.ranks, 0}};
      break;
    case Collective::Barrier:
      return {};
  }
  shape.size_bytes = std::max(shape.input_count, shape.output_count) * element_bytes(problem.dtype);
  return shape;
}

Start make_start(const Communicator& communicator, const Problem& problem, Stream stream) {
  return [communicator = Communicator(communicator), problem, stream](
             const Shape& shape, const void* input, void* output) mutable -> Work {
    const DType dtype = problem.dtype;
    // In a stream as NCCL's calls are, which nobody asks for their end either.
    const CallOptions options{.stream = stream, .stream_ordered = stream.handle != nullptr};
    const int next = (problem.rank + 1) % problem.ranks;
    const int previous = (problem.rank + problem.ranks - 1) % problem.ranks;
    switch (problem.traits->collective) {
      case Collective::AllReduce:
        return communicator.all_reduce(input, output, shape.count, dtype, problem.op, options);
      case Collective::ReduceScatter:
        return communicator.reduce_scatter(input, output, shape.count, dtype, problem.op, options);
      case Collective::AllGather:
        return communicator.all_gather(input, output, shape.count, dtype, options);
      case Collective::AllGatherV:
        return communicator.all_gather_v(input, output, shape.receive_counts, dtype, options);
      case Collective::Broadcast:
        return communicator.broadcast(output, shape.count, dtype, problem.root, options);
      case Collective::Reduce:
        return communicator.reduce(input, output, shape.count, dtype, problem.op, problem.root,
                                   options);
      case Collective::AllToAll:
        return communicator.all_to_all(input, output, shape.count, dtype, options);
      case Collective::AllToAllV:
        return communicator.all_to_all_v(input, shape.send_counts, output, shape.receive_counts,
                                         dtype, options);
      case Collective::SendReceive: {
        const Work received = communicator.receive(output, shape.count, dtype, previous, options);
        communicator.send(input, shape.count, dtype, next, options).wait();
        return received;
      }
      case Collective::Barrier:
        break;
    }
    return communicator.barrier(options);
  };
}

Call make_call(const Communicator& communicator, const Problem& problem) {
  return [start = make_start(communicator, problem)](const Shape& shape, const void* input,
                                                     void* output) {
    start(shape, input, output).wait();
  };
}

}  // namespace tersum::perf
