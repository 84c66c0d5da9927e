// All-gather, reduce-scatter and all-to-all between all pairs, peers in rotated order so that no
// rank is everybody's first.
#include <cstring>
#include <numeric>

#include "src/collectives/collectives.hpp"
#include "src/reduce.hpp"

namespace tersum::runtime {
namespace {

std::vector<std::size_t> offsets_of(const std::vector<std::size_t>& counts) {
  std::vector<std::size_t> offsets(counts.size() + 1, 0);
  std::partial_sum(counts.begin(), counts.end(), offsets.begin() + 1);
  return offsets;
}

}  // namespace

Task<> all_gather(Operation& op, const void* input, void* output, std::vector<std::size_t> counts,
                  DType dtype) {
  const int ranks = op.size(), rank = op.rank();
  const std::size_t element = element_bytes(dtype);
  const auto offsets = offsets_of(counts);
  const auto at = [&](int r) { return offsets[static_cast<std::size_t>(r)] * element; };
  const auto bytes = [&](int r) { return counts[static_cast<std::size_t>(r)] * element; };
  auto gathered = op.scratch(offsets.back() * element);
  std::vector<Transfer> receives, sends;
  for (int d = 1; d < ranks; ++d) {
    const int from = (rank + ranks - d) % ranks;
    receives.push_back(op.receive(from, 0, write_view(gathered.data(), at(from), bytes(from))));
  }
  for (int d = 1; d < ranks; ++d)
    sends.push_back(op.send((rank + d) % ranks, 0, read_view(input, 0, bytes(rank))));
  for (auto& transfer : receives) co_await transfer;
  for (auto& transfer : sends) co_await transfer;
  auto copy = op.compute(gathered.size(), [&] {
    if (bytes(rank) > 0) std::memcpy(gathered.data() + at(rank), input, bytes(rank));
    if (!gathered.empty()) std::memcpy(output, gathered.data(), gathered.size());
  });
  co_await copy;
}

Task<> reduce_scatter(Operation& op, Reduction call) {
  const Arithmetic arithmetic(call.dtype, call.op);
  const int ranks = op.size(), rank = op.rank();
  const std::size_t bytes = call.count * element_bytes(call.dtype);
  const auto part = [&](int r) { return bytes * static_cast<std::size_t>(r); };
  auto inbox = op.scratch(bytes * static_cast<std::size_t>(ranks));
  auto sums = op.scratch(call.count * arithmetic.accumulator_bytes());
  std::vector<Transfer> receives, sends;
  for (int d = 1; d < ranks; ++d) {
    const int from = (rank + ranks - d) % ranks;
    receives.push_back(op.receive(from, 0, write_view(inbox.data(), part(from), bytes)));
  }
  for (int d = 1; d < ranks; ++d) {
    const int to = (rank + d) % ranks;
    sends.push_back(op.send(to, 0, read_view(call.input, part(to), bytes)));
  }
  for (auto& transfer : receives) co_await transfer;
  auto sum = op.compute(inbox.size(), [&] {
    for (int r = 0; r < ranks && bytes > 0; ++r) {
      const std::byte* values = r == rank ? static_cast<const std::byte*>(call.input) + part(rank)
                                          : inbox.data() + part(r);
      if (r == 0)
        arithmetic.load(sums.data(), values, call.count, call.pre_scale);
      else
        arithmetic.combine(sums.data(), values, call.count, call.pre_scale);
    }
  });
  co_await sum;
  for (auto& transfer : sends) co_await transfer;
  arithmetic.store(sums.data(), call.output, call.count, ranks, call.post_scale);
}

Task<> all_to_all(Operation& op, const void* input, std::vector<std::size_t> send_counts,
                  void* output, std::vector<std::size_t> receive_counts, DType dtype) {
  const int ranks = op.size(), rank = op.rank();
  const std::size_t element = element_bytes(dtype);
  const auto send_at = offsets_of(send_counts), receive_at = offsets_of(receive_counts);
  const auto bytes = [&](const std::vector<std::size_t>& counts, int r) {
    return counts[static_cast<std::size_t>(r)] * element;
  };
  const auto at = [&](const std::vector<std::size_t>& offsets, int r) {
    return offsets[static_cast<std::size_t>(r)] * element;
  };
  auto received = op.scratch(receive_at.back() * element);
  std::vector<Transfer> receives, sends;
  for (int d = 1; d < ranks; ++d) {
    const int from = (rank + ranks - d) % ranks;
    receives.push_back(op.receive(
        from, 0, write_view(received.data(), at(receive_at, from), bytes(receive_counts, from))));
  }
  for (int d = 1; d < ranks; ++d) {
    const int to = (rank + d) % ranks;
    sends.push_back(op.send(to, 0, read_view(input, at(send_at, to), bytes(send_counts, to))));
  }
  for (int d = 1; d < ranks; ++d) {
    const int from = (rank + ranks - d) % ranks;
    Transfer& arriving = receives[static_cast<std::size_t>(d - 1)];
    const std::size_t got = co_await arriving;
    if (got != bytes(receive_counts, from))
      throw Error(Code::Mismatch, "rank " + std::to_string(from) + " sent " + std::to_string(got) +
                                      " bytes to rank " + std::to_string(rank) +
                                      ", which expected " +
                                      std::to_string(bytes(receive_counts, from)));
  }
  for (auto& transfer : sends) co_await transfer;
  Task<> agreed =
      dissemination(op, 1);  // counts differ by pair: a pair's difference fails everybody
  co_await agreed;
  auto copy = op.compute(received.size(), [&] {
    if (bytes(send_counts, rank) > 0)
      std::memcpy(received.data() + at(receive_at, rank),
                  static_cast<const std::byte*>(input) + at(send_at, rank),
                  bytes(send_counts, rank));
    if (!received.empty()) std::memcpy(output, received.data(), received.size());
  });
  co_await copy;
}

}  // namespace tersum::runtime
