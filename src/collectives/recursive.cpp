// Recursive doubling, and recursive halving followed by doubling (Rabenseifner 2004). A number of
// ranks that is no power of two is folded first: the even ones of the lowest 2r ranks hand their
// values to their odd neighbours and get the result back at the end (r = ranks - largest power of
// two).
#include <bit>
#include <cstring>
#include <vector>

#include "src/collectives/collectives.hpp"
#include "src/reduce.hpp"

namespace tersum::runtime {
namespace {

struct Fold {
  explicit Fold(int ranks, int rank)
      : core(static_cast<int>(std::bit_floor(static_cast<unsigned>(ranks)))), extra(ranks - core) {
    idle = rank < 2 * extra && rank % 2 == 0;
    partner = rank < 2 * extra ? (rank ^ 1) : -1;
    core_rank = rank < 2 * extra ? rank / 2 : rank - extra;
  }
  /// Group rank of a core rank.
  int group_rank(int other) const { return other < extra ? 2 * other + 1 : other + extra; }

  int core, extra;
  bool idle;    ///< takes no part in the core; its odd neighbour acts for it
  int partner;  ///< the other half of the pair, or -1
  int core_rank;
};

constexpr std::uint64_t kFoldHop = 1000, kUnfoldHop = 1001;

/// Before the core: an idle rank sends its values; its partner adds them (the lower rank's values
/// first).
Task<> fold_in(Operation& op, const Fold& fold, const Arithmetic& arithmetic,
               std::span<std::byte> values, std::span<std::byte> inbox, std::size_t count) {
  if (fold.partner < 0) co_return;
  if (fold.idle) {
    Transfer sending = op.send(fold.partner, kFoldHop, read_view(values.data(), 0, values.size()));
    co_await sending;
  } else {
    Transfer receiving =
        op.receive(fold.partner, kFoldHop, write_view(inbox.data(), 0, values.size()));
    co_await receiving;
    auto sum = op.compute(values.size(),
                          [&] { arithmetic.merge(values.data(), inbox.data(), count, true); });
    co_await sum;
  }
}

/// After the core: the result goes back to the idle rank.
Task<> fold_out(Operation& op, const Fold& fold, std::span<std::byte> values) {
  if (fold.partner < 0) co_return;
  if (fold.idle) {
    Transfer receiving =
        op.receive(fold.partner, kUnfoldHop, write_view(values.data(), 0, values.size()));
    co_await receiving;
  } else {
    Transfer sending =
        op.send(fold.partner, kUnfoldHop, read_view(values.data(), 0, values.size()));
    co_await sending;
  }
}

Task<> doubling_core(Operation& op, const Fold& fold, const Arithmetic& arithmetic,
                     std::span<std::byte> values, std::span<std::byte> inbox, std::size_t count) {
  for (int distance = 1; distance < fold.core; distance *= 2) {
    const int other = fold.core_rank ^ distance;
    const int peer = fold.group_rank(other);
    const auto hop = static_cast<std::uint64_t>(distance);
    Transfer receiving = op.receive(peer, hop, write_view(inbox.data(), 0, values.size()));
    Transfer sending = op.send(peer, hop, read_view(values.data(), 0, values.size()));
    co_await receiving;
    co_await sending;  // before the values change
    auto sum = op.compute(values.size(), [&] {
      arithmetic.merge(values.data(), inbox.data(), count, other < fold.core_rank);
    });
    co_await sum;
  }
}

/// Halves the range that this rank is responsible for until it is one share, then doubles it again.
Task<> halving_core(Operation& op, const Fold& fold, const Arithmetic& arithmetic,
                    const Reduction& call, std::span<std::byte> values,
                    std::span<std::byte> inbox) {
  struct Range {
    std::size_t begin, end;
  };
  const std::size_t element = element_bytes(call.dtype);
  std::vector<Range> kept{{0, call.count}}, given;
  std::uint64_t hop = 2000;
  for (int distance = fold.core / 2; distance > 0; distance /= 2, ++hop) {
    const int other = fold.core_rank ^ distance;
    const int peer = fold.group_rank(other);
    const Range whole = kept.back();
    const std::size_t middle = whole.begin + (whole.end - whole.begin) / 2;
    const bool lower = fold.core_rank < other;
    const Range keep = lower ? Range{whole.begin, middle} : Range{middle, whole.end};
    const Range give = lower ? Range{middle, whole.end} : Range{whole.begin, middle};
    const std::size_t keep_count = keep.end - keep.begin;
    Transfer receiving = op.receive(peer, hop, write_view(inbox.data(), 0, keep_count * element));
    Transfer sending =
        op.send(peer, hop,
                read_view(values.data(), give.begin * element, (give.end - give.begin) * element));
    co_await receiving;
    auto sum = op.compute(keep_count * element, [&] {
      arithmetic.merge(values.data() + keep.begin * element, inbox.data(), keep_count, !lower);
    });
    co_await sum;
    co_await sending;
    kept.push_back(keep);
    given.push_back(give);
  }
  const Range own = kept.back();
  arithmetic.store(values.data() + own.begin * element, values.data() + own.begin * element,
                   own.end - own.begin, op.size(), call.post_scale);
  for (int distance = 1; distance < fold.core; distance *= 2, ++hop) {
    const int peer = fold.group_rank(fold.core_rank ^ distance);
    const Range have = kept.back(), want = given.back();
    kept.pop_back();
    given.pop_back();
    Transfer receiving = op.receive(
        peer, hop,
        write_view(values.data(), want.begin * element, (want.end - want.begin) * element));
    Transfer sending =
        op.send(peer, hop,
                read_view(values.data(), have.begin * element, (have.end - have.begin) * element));
    co_await receiving;
    co_await sending;
  }
}

Task<> recursive(Operation& op, Reduction call, bool halving) {
  const Arithmetic arithmetic(call.dtype, call.op);
  const Fold fold(op.size(), op.rank());
  const std::size_t bytes = call.count * element_bytes(call.dtype);
  auto values = op.scratch(bytes), inbox = op.scratch(bytes);
  arithmetic.load(values.data(), call.input, call.count, call.pre_scale);
  Task<> before = fold_in(op, fold, arithmetic, values, inbox, call.count);
  co_await before;
  if (!fold.idle && halving) {
    Task<> core = halving_core(op, fold, arithmetic, call, values, inbox);
    co_await core;
  } else if (!fold.idle) {
    Task<> core = doubling_core(op, fold, arithmetic, values, inbox, call.count);
    co_await core;
    arithmetic.store(values.data(), values.data(), call.count, op.size(), call.post_scale);
  }
  Task<> after = fold_out(op, fold, values);
  co_await after;
  if (bytes > 0) std::memcpy(call.output, values.data(), bytes);
}

}  // namespace

Task<> doubling_all_reduce(Operation& op, Reduction call) {
  return recursive(op, call, false);
}
Task<> halving_all_reduce(Operation& op, Reduction call) {
  return recursive(op, call, true);
}

}  // namespace tersum::runtime
