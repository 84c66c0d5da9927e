#include <algorithm>
#include <bit>
#include <cstring>

#include "src/collectives/collectives.hpp"
#include "src/reduce.hpp"

namespace tersum::runtime {
namespace {

// From bench/all_reduce_algorithms.sh; see bench/results/all_reduce_algorithms-*.txt.
constexpr std::size_t kDoublingBytes = 4 * 1024;  // up to here latency is everything
constexpr int kDirectRanks = 8;                   // beyond, n-1 messages at once crowd the receiver
constexpr std::size_t kOneShotBytes = 64 * 1024;  // whole vectors to everyone: one hop, not two
constexpr std::size_t kOneShotPairBytes = 1024 * 1024;  // the same where the bytes are the same
constexpr std::size_t kPieceBytes =
    4u << 20;  // large shares travel in pieces, so that sums overlap with transfers

Task<> one_shot(Operation& op, Reduction call) {
  const Arithmetic arithmetic(call.dtype, call.op);
  const int ranks = op.size(), rank = op.rank();
  const std::size_t bytes = call.count * element_bytes(call.dtype);
  auto inbox = op.scratch(bytes * static_cast<std::size_t>(ranks));
  auto sums = op.scratch(call.count * arithmetic.accumulator_bytes());
  std::vector<Transfer> receives, sends;
  for (int d = 1; d < ranks; ++d) {
    const int from = (rank + ranks - d) % ranks;
    receives.push_back(op.receive(
        from, 0, write_view(inbox.data(), bytes * static_cast<std::size_t>(from), bytes)));
  }
  for (int d = 1; d < ranks; ++d)
    sends.push_back(op.send((rank + d) % ranks, 0, read_view(call.input, 0, bytes)));
  for (int r = 0; r < ranks; ++r) {  // rank order, whoever comes first
    const std::byte* part = static_cast<const std::byte*>(call.input);
    if (r != rank) {
      Transfer& arriving = receives[static_cast<std::size_t>((rank - r + ranks) % ranks - 1)];
      co_await arriving;
      part = inbox.data() + bytes * static_cast<std::size_t>(r);
    }
    if (r == 0)
      arithmetic.load(sums.data(), part, call.count, call.pre_scale);
    else
      arithmetic.combine(sums.data(), part, call.count, call.pre_scale);
  }
  for (auto& transfer : sends) co_await transfer;  // in place, the output is what is being sent
  arithmetic.store(sums.data(), call.output, call.count, ranks, call.post_scale);
}

/// The owner's half of one piece: everybody's values of it, summed in rank order, rounded into
/// `result`.
void reduce_piece(const Arithmetic& arithmetic, const Reduction& call, int rank, int ranks,
                  const std::byte* own, const std::byte* inbox, std::size_t stride_bytes,
                  std::byte* sums, std::byte* result, std::size_t count) {
  for (int r = 0; r < ranks; ++r) {
    const std::byte* part = r == rank ? own : inbox + static_cast<std::size_t>(r) * stride_bytes;
    if (r == 0)
      arithmetic.load(sums, part, count, call.pre_scale);
    else
      arithmetic.combine(sums, part, count, call.pre_scale);
  }
  arithmetic.store(sums, result, count, ranks, call.post_scale);
}

/// Scatter-reduce and all-gather between all pairs, in pieces: while a piece is summed, later ones
/// travel.
Task<> two_shot(Operation& op, Reduction call) {
  const Arithmetic arithmetic(call.dtype, call.op);
  const int ranks = op.size(), rank = op.rank();
  const std::size_t element = element_bytes(call.dtype);
  const Partition shares{call.count, ranks};
  std::byte* result = call.may_spoil ? static_cast<std::byte*>(call.output)
                                     : op.scratch(call.count * element).data();
  const std::size_t mine = shares.size(rank);
  const std::size_t piece = std::max<std::size_t>(1, kPieceBytes / element);
  const int pieces =
      static_cast<int>(std::max<std::size_t>(1, (shares.size(0) + piece - 1) / piece));
  const std::size_t stride_bytes = mine * element;
  auto inbox = op.scratch(stride_bytes * static_cast<std::size_t>(ranks));
  auto sums = op.scratch(std::min(mine, piece) * arithmetic.accumulator_bytes());
  const auto part = [&](std::size_t share, int p) {  // offset and count of piece p of a share
    const std::size_t begin = std::min(share, static_cast<std::size_t>(p) * piece);
    return std::pair(begin, std::min(share, begin + piece) - begin);
  };

  std::vector<Transfer> scattered, gathers, sends;
  for (int p = 0; p < pieces; ++p) {
    const auto [begin, count] = part(mine, p);
    for (int d = 1; d < ranks; ++d) {
      const int from = (rank + ranks - d) % ranks;
      const std::size_t at = static_cast<std::size_t>(from) * stride_bytes + begin * element;
      scattered.push_back(op.receive(from, static_cast<std::uint64_t>(2 * p),
                                     write_view(inbox.data(), at, count * element)));
    }
  }
  for (int p = 0; p < pieces; ++p)
    for (int d = 1; d < ranks; ++d) {
      const int peer = (rank + d) % ranks;
      const auto [begin, count] = part(shares.size(peer), p);
      sends.push_back(
          op.send(peer, static_cast<std::uint64_t>(2 * p),
                  read_view(call.input, (shares.offset(peer) + begin) * element, count * element)));
      gathers.push_back(
          op.receive(peer, static_cast<std::uint64_t>(2 * p + 1),
                     write_view(result, (shares.offset(peer) + begin) * element, count * element)));
    }
  for (int p = 0; p < pieces; ++p) {
    const auto [begin, count] = part(mine, p);
    for (int d = 1; d < ranks; ++d) {
      Transfer& arriving = scattered[static_cast<std::size_t>(p * (ranks - 1) + d - 1)];
      co_await arriving;
    }
    const std::byte* own =
        static_cast<const std::byte*>(call.input) + (shares.offset(rank) + begin) * element;
    std::byte* to = result + (shares.offset(rank) + begin) * element;
    const std::byte* from = inbox.data() + begin * element;
    auto sum = op.compute(count * element * static_cast<std::size_t>(ranks), [&, own, from, to,
                                                                              n = count] {
      if (n > 0)
        reduce_piece(arithmetic, call, rank, ranks, own, from, stride_bytes, sums.data(), to, n);
    });
    co_await sum;
    for (int d = 1; d < ranks; ++d)
      sends.push_back(op.send((rank + d) % ranks, static_cast<std::uint64_t>(2 * p + 1),
                              read_view(to, 0, count * element)));
  }
  for (auto& transfer : gathers) co_await transfer;
  for (auto& transfer : sends) co_await transfer;
  if (call.may_spoil) co_return;
  auto copy = op.compute(call.count * element, [&] {
    if (call.count > 0) std::memcpy(call.output, result, call.count * element);
  });
  co_await copy;
}

Algorithm choose(Algorithm wanted, const Reduction& call, int ranks) {
  const Arithmetic arithmetic(call.dtype, call.op);
  const std::size_t bytes = call.count * element_bytes(call.dtype);
  const Algorithm direct = bytes <= (ranks == 2 ? kOneShotPairBytes : kOneShotBytes)
                               ? Algorithm::OneShot
                               : Algorithm::TwoShot;
  if (wanted == Algorithm::OneShot || wanted == Algorithm::TwoShot) return wanted;
  if (wanted == Algorithm::Direct || !arithmetic.accumulates_in_place()) return direct;
  if (wanted != Algorithm::Auto) return wanted;
  if (ranks <= kDirectRanks) return direct;
  if (bytes <= kDoublingBytes) return Algorithm::Doubling;
  return std::has_single_bit(static_cast<unsigned>(ranks)) ? Algorithm::Halving : Algorithm::Ring;
}

}  // namespace

Algorithm parse_algorithm(std::string_view name) {
  if (name == "auto") return Algorithm::Auto;
  if (name == "direct") return Algorithm::Direct;
  if (name == "oneshot") return Algorithm::OneShot;
  if (name == "twoshot") return Algorithm::TwoShot;
  if (name == "ring") return Algorithm::Ring;
  if (name == "halving") return Algorithm::Halving;
  if (name == "doubling") return Algorithm::Doubling;
  throw Error(Code::InvalidArgument,
              "unknown all-reduce algorithm '" + std::string(name) +
                  "': use auto, direct, oneshot, twoshot, ring, halving or doubling "
                  "(TERSUM_ALGORITHM)");
}

Task<> all_reduce(Operation& op, Reduction call, Algorithm algorithm) {
  if (op.size() == 1) {
    const Arithmetic arithmetic(call.dtype, call.op);
    auto sums = op.scratch(call.count * arithmetic.accumulator_bytes());
    arithmetic.load(sums.data(), call.input, call.count, call.pre_scale);
    arithmetic.store(sums.data(), call.output, call.count, 1, call.post_scale);
    co_return;
  }
  algorithm = choose(algorithm, call, op.size());
  Task<> task = algorithm == Algorithm::Ring       ? ring_all_reduce(op, call)
                : algorithm == Algorithm::Halving  ? halving_all_reduce(op, call)
                : algorithm == Algorithm::Doubling ? doubling_all_reduce(op, call)
                : algorithm == Algorithm::OneShot  ? one_shot(op, call)
                                                   : two_shot(op, call);
  co_await task;
}

}  // namespace tersum::runtime
