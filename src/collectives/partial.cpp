// All-reduce of partial results that are wider than the result.
#include <cstring>

#include "src/collectives/collectives.hpp"
#include "src/reduce.hpp"

namespace tersum::runtime {
namespace {

constexpr std::size_t kWholeBytes = 64 * 1024;  // up to here everybody combines everything: one hop

}  // namespace

Task<> all_reduce_partial(Operation& op, Reduction call, int contributors) {
  const Arithmetic arithmetic(call.dtype, call.op);
  const int ranks = op.size(), rank = op.rank();
  const std::size_t element = element_bytes(call.dtype), wide = arithmetic.accumulator_bytes();
  const bool whole = call.count * wide <= kWholeBytes;
  const Partition shares{call.count, ranks};
  const auto begin = [&](int r) { return whole ? 0 : shares.offset(r); };
  const auto size = [&](int r) { return whole ? call.count : shares.size(r); };
  const std::size_t stride = size(rank) * wide;
  auto inbox = op.scratch(stride * static_cast<std::size_t>(ranks));
  auto* const output = static_cast<std::byte*>(call.output);
  const auto part = [&](int r) { return stride * static_cast<std::size_t>(r); };
  std::vector<Transfer> scattered, gathered, sends;
  for (int d = 1; d < ranks; ++d) {
    const int from = (rank + ranks - d) % ranks;
    scattered.push_back(op.receive(from, 0, write_view(inbox.data(), part(from), stride)));
    if (!whole)
      gathered.push_back(
          op.receive(from, 1, write_view(output, begin(from) * element, size(from) * element)));
  }
  for (int d = 1; d < ranks; ++d) {
    const int to = (rank + d) % ranks;
    sends.push_back(op.send(to, 0, read_view(call.input, begin(to) * wide, size(to) * wide)));
  }
  for (auto& transfer : scattered) co_await transfer;
  std::byte* const result = output + begin(rank) * element;
  auto sum = op.compute(inbox.size(), [&] {
    const std::size_t count = size(rank);
    if (count == 0) return;
    std::memcpy(inbox.data() + part(rank),
                static_cast<const std::byte*>(call.input) + begin(rank) * wide, stride);
    for (int r = 1; r < ranks; ++r)
      arithmetic.merge(inbox.data(), inbox.data() + part(r), count, false);
    arithmetic.store(inbox.data(), result, count, contributors, call.post_scale);
  });
  co_await sum;
  for (int d = 1; d < ranks && !whole; ++d)
    sends.push_back(op.send((rank + d) % ranks, 1, read_view(result, 0, size(rank) * element)));
  for (auto& transfer : gathered) co_await transfer;
  for (auto& transfer : sends) co_await transfer;
}

}  // namespace tersum::runtime
