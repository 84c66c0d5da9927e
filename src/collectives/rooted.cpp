// Broadcast, reduce, barrier and point to point.
#include <algorithm>
#include <bit>
#include <cstring>

#include "src/collectives/collectives.hpp"
#include "src/reduce.hpp"

namespace tersum::runtime {
namespace {

constexpr std::size_t kTreeBytes = 64 * 1024;  // larger broadcasts are scattered, then gathered
constexpr std::uint64_t kGatherHop = 1;

/// Binomial tree over ranks relative to the root.
Task<> tree_broadcast(Operation& op, std::span<std::byte> values, int root) {
  const int ranks = op.size();
  const int relative = (op.rank() - root + ranks) % ranks;
  int distance = static_cast<int>(std::bit_ceil(static_cast<unsigned>(ranks)));
  if (relative != 0) {
    distance = relative & -relative;  // lowest set bit: the parent lacks it
    Transfer receiving = op.receive((relative - distance + root) % ranks, 0,
                                    write_view(values.data(), 0, values.size()));
    co_await receiving;
  }
  std::vector<Transfer> sends;
  for (distance /= 2; distance > 0; distance /= 2)
    if (relative + distance < ranks)
      sends.push_back(op.send((relative + distance + root) % ranks, 0,
                              read_view(values.data(), 0, values.size())));
  for (auto& transfer : sends) co_await transfer;
}

/// The root sends each rank its share; then everybody sends its share to everybody (van de Geijn):
/// every rank but the root sends and receives about as many bytes as the vector has, and the root
/// twice that at most.
Task<> scattered_broadcast(Operation& op, std::span<std::byte> values, int root) {
  const int ranks = op.size(), rank = op.rank();
  const Partition shares{values.size(), ranks};
  const auto share = [&](int r) {
    return read_view(values.data(), shares.offset(r), shares.size(r));
  };
  std::vector<Transfer> receives, sends;
  if (rank == root) {
    for (int d = 1; d < ranks; ++d)
      sends.push_back(op.send((rank + d) % ranks, 0, share((rank + d) % ranks)));
  } else {
    Transfer own =
        op.receive(root, 0, write_view(values.data(), shares.offset(rank), shares.size(rank)));
    for (int d = 1; d < ranks; ++d) {
      const int from = (rank + d) % ranks;
      receives.push_back(op.receive(
          from, kGatherHop, write_view(values.data(), shares.offset(from), shares.size(from))));
    }
    co_await own;
  }
  for (int d = 1; d < ranks; ++d) {
    const int to = (rank + d) % ranks;
    if (to != root) sends.push_back(op.send(to, kGatherHop, share(rank)));
  }
  for (auto& transfer : receives) co_await transfer;
  for (auto& transfer : sends) co_await transfer;
}

}  // namespace

Task<> dissemination(Operation& op, int distance) {
  const int ranks = op.size(), rank = op.rank();
  for (; distance < ranks; distance *= 2) {
    const std::uint64_t hop = kBarrierHops + static_cast<std::uint64_t>(distance);
    Transfer receiving = op.receive((rank + ranks - distance) % ranks, hop, {});
    Transfer sending = op.send((rank + distance) % ranks, hop, {});
    co_await receiving;
    co_await sending;
  }
}

Task<> barrier(Operation& op) {
  return dissemination(op, 1);
}

Task<> broadcast(Operation& op, void* data, std::size_t bytes, int root) {
  const int ranks = op.size(), rank = op.rank();
  if (ranks == 1) co_return;
  const bool is_root = rank == root;
  // The first round of the agreement goes ahead: where all believe that another is the root, nobody
  // sends anything else, and the neighbours' disagreement would not be noticed.
  Transfer greeted = op.receive((rank + ranks - 1) % ranks, kBarrierHops + 1, {});
  Transfer greeting = op.send((rank + 1) % ranks, kBarrierHops + 1, {});
  std::span<std::byte> values(static_cast<std::byte*>(data), is_root ? bytes : 0);
  if (!is_root) values = op.scratch(bytes);
  Task<> moving = bytes <= kTreeBytes || ranks == 2 ? tree_broadcast(op, values, root)
                                                    : scattered_broadcast(op, values, root);
  co_await moving;
  co_await greeted;
  co_await greeting;
  Task<> agreed = dissemination(op, 2);  // nobody succeeds in a call that others see differently
  co_await agreed;
  if (!is_root && bytes > 0) {
    auto copy = op.compute(bytes, [&] { std::memcpy(data, values.data(), bytes); });
    co_await copy;
  }
}

Task<> reduce(Operation& op, Reduction call, int root) {
  const Arithmetic arithmetic(call.dtype, call.op);
  const int ranks = op.size(), rank = op.rank();
  const std::size_t element = element_bytes(call.dtype);
  const Partition shares{call.count, ranks};
  const std::size_t mine = shares.size(rank);
  auto inbox = op.scratch(mine * element * static_cast<std::size_t>(ranks));
  auto sums = op.scratch(mine * arithmetic.accumulator_bytes());
  auto own = op.scratch(mine * element);
  auto whole = rank == root ? op.scratch(call.count * element) : std::span<std::byte>();
  std::vector<Transfer> receives, sends, gathers;
  for (int d = 1; d < ranks; ++d) {
    const int peer = (rank + d) % ranks;
    receives.push_back(op.receive(
        peer, 0,
        write_view(inbox.data(), mine * element * static_cast<std::size_t>(peer), mine * element)));
    if (rank == root)
      gathers.push_back(op.receive(
          peer, kGatherHop,
          write_view(whole.data(), shares.offset(peer) * element, shares.size(peer) * element)));
  }
  for (int d = 1; d < ranks; ++d) {
    const int peer = (rank + d) % ranks;
    sends.push_back(
        op.send(peer, 0,
                read_view(call.input, shares.offset(peer) * element, shares.size(peer) * element)));
  }
  for (auto& transfer : receives) co_await transfer;
  auto sum = op.compute(inbox.size(), [&] {
    for (int r = 0; r < ranks; ++r) {
      const std::byte* part =
          r == rank ? static_cast<const std::byte*>(call.input) + shares.offset(rank) * element
                    : inbox.data() + mine * element * static_cast<std::size_t>(r);
      if (mine == 0) continue;
      if (r == 0)
        arithmetic.load(sums.data(), part, mine, call.pre_scale);
      else
        arithmetic.combine(sums.data(), part, mine, call.pre_scale);
    }
    arithmetic.store(sums.data(), own.data(), mine, ranks, call.post_scale);
  });
  co_await sum;
  if (rank != root)
    sends.push_back(op.send(root, kGatherHop, read_view(own.data(), 0, own.size())));
  for (auto& transfer : gathers) co_await transfer;
  for (auto& transfer : sends) co_await transfer;
  Task<> agreed = dissemination(op, 1);
  co_await agreed;
  if (rank == root && call.count > 0) {
    if (mine > 0) std::memcpy(whole.data() + shares.offset(rank) * element, own.data(), own.size());
    std::memcpy(call.output, whole.data(), whole.size());
  }
}

Task<> send(Operation& op, const void* data, std::size_t bytes, int peer) {
  Transfer matched =
      op.receive(peer, 1, {});  // the receiver has met it, and agrees about what it is
  Transfer sending = op.send(peer, 0, read_view(data, 0, bytes));
  co_await sending;
  co_await matched;
}

Task<> receive(Operation& op, void* data, std::size_t bytes, int peer) {
  auto staging = op.scratch(bytes);
  Transfer receiving = op.receive(peer, 0, write_view(staging.data(), 0, bytes));
  co_await receiving;
  Transfer matched = op.send(peer, 1, {});
  co_await matched;
  if (bytes > 0) std::memcpy(data, staging.data(), bytes);
}

}  // namespace tersum::runtime
