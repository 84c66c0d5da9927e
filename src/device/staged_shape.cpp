#include "src/device/staged_shape.hpp"

#include <string>

namespace tersum::runtime {
namespace {

std::vector<StagedRun> even_runs(std::size_t count, std::size_t ranks) {
  std::vector<StagedRun> runs(ranks);
  for (std::size_t r = 0; r < ranks; ++r) runs[r] = {r * count, count};
  return runs;
}

std::vector<StagedRun> travelling_runs(const std::vector<std::size_t>& counts, std::size_t own) {
  std::vector<StagedRun> runs(counts.size());
  std::size_t offset = 0;
  for (std::size_t r = 0; r < runs.size(); offset += counts[r], ++r)
    runs[r] = {offset, r == own ? 0 : counts[r]};
  return runs;
}

std::size_t longest_of(const std::vector<StagedRun>& runs) {
  std::size_t longest = 0;
  for (const StagedRun& run : runs) longest = std::max(longest, run.count);
  return longest;
}

}  // namespace

StagedShape::StagedShape(const DeviceCall& call, int rank, int size) {
  const auto ranks = static_cast<std::size_t>(size), own = static_cast<std::size_t>(rank);
  const bool is_root = call.peer == rank;
  const std::vector<StagedRun> one{{0, call.count}};
  longest = call.count;
  switch (call.kind) {
    case CallKind::AllReduce:
      out = in = one;
      return;
    case CallKind::ReduceScatter:
      out = even_runs(call.count, ranks);
      in = one;
      most_runs = ranks;
      return;
    case CallKind::AllGather:
      out = one;
      in = even_runs(call.count, ranks);
      most_runs = ranks;
      return;
    case CallKind::AllGatherV:
      longest = *std::max_element(call.receive_counts.begin(), call.receive_counts.end());
      out = {{0, call.receive_counts[own]}};
      in = travelling_runs(call.receive_counts, own);
      most_runs = ranks;
      return;
    case CallKind::Broadcast:
      (is_root ? out : in) = one;
      return;
    case CallKind::Reduce:
      out = one;
      if (is_root) in = one;
      return;
    case CallKind::AllToAll:
      out = in = even_runs(call.count, ranks);
      most_runs = ranks;
      return;
    case CallKind::AllToAllV:
      out = travelling_runs(call.send_counts, own);
      in = travelling_runs(call.receive_counts, own);
      longest = std::max(longest_of(out), longest_of(in));
      most_runs = ranks;
      return;
    case CallKind::PointToPoint:
      (call.sending ? out : in) = one;
      return;
    case CallKind::Barrier:
      out = in = one;  // of no elements: a slot tells where a stream has come to, and holds it
      return;
    default:
      throw Error(Code::Internal,
                  std::string(to_string(call.kind)) + " is no collective on device memory");
  }
}

}  // namespace tersum::runtime
