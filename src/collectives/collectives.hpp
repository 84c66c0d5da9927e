// Collective algorithms as coroutines over Operation's awaitable sends and receives.
//
// Every algorithm keeps to the same contract: inputs are not changed, and outputs are written last,
// when nothing can fail any more, so that a failed call leaves the user's memory as it was. Ranks
// are group ranks. Sizes are in elements of `dtype` unless they say bytes. All results are
// bit-identical on all ranks.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

#include "src/engine/operation.hpp"
#include "src/engine/task.hpp"
#include "tersum/types.hpp"

namespace tersum::runtime {

/// Arguments of a reduction over ranks.
struct Reduction {
  const void* input = nullptr;
  void* output = nullptr;
  std::size_t count = 0;
  DType dtype = DType::Float32;
  ReduceOp op = ReduceOp::Sum;
  double pre_scale = 1.0, post_scale = 1.0;
  bool may_spoil = false;  ///< a failed call may leave anything in the output, which is no input
};

enum class Algorithm {
  Auto,
  Direct,    ///< between all pairs, one-shot or two-shot by size: sums in rank order
  OneShot,   ///< everything to everyone, who sums it all
  TwoShot,   ///< scatter-reduce, then all-gather, in pieces
  Ring,      ///< 2(n-1) steps between neighbours
  Halving,   ///< recursive halving, then doubling (Rabenseifner)
  Doubling,  ///< recursive doubling of whole vectors
};
/// Error InvalidArgument for unknown names.
Algorithm parse_algorithm(std::string_view name);

/// `algorithm` is a wish: partial results that would lose precision on the wire (16-bit floats,
/// averages of integers) always go direct.
Task<> all_reduce(Operation& op, Reduction call, Algorithm algorithm);
/// The same between partial results: the input has accumulators of call.dtype (fp32 for 16-bit
/// floats), which are combined by the owners of shares in rank order and rounded there, once; the
/// results travel rounded. `contributors`: ranks whose values they hold, all together. Not
/// pre-scaled; as if call.may_spoil.
Task<> all_reduce_partial(Operation& op, Reduction call, int contributors);
Task<> ring_all_reduce(Operation& op, Reduction call);
Task<> halving_all_reduce(Operation& op, Reduction call);
Task<> doubling_all_reduce(Operation& op, Reduction call);

/// call.count: elements of the output; the input has count * size.
Task<> reduce_scatter(Operation& op, Reduction call);
Task<> reduce(Operation& op, Reduction call, int root);

/// counts[r]: elements of rank r. The input is this rank's part.
Task<> all_gather(Operation& op, const void* input, void* output, std::vector<std::size_t> counts,
                  DType dtype);
Task<> broadcast(Operation& op, void* data, std::size_t bytes, int root);
Task<> all_to_all(Operation& op, const void* input, std::vector<std::size_t> send_counts,
                  void* output, std::vector<std::size_t> receive_counts, DType dtype);
Task<> barrier(Operation& op);
Task<> send(Operation& op, const void* data, std::size_t bytes, int peer);
Task<> receive(Operation& op, void* data, std::size_t bytes, int peer);

// ---- what the algorithms share ----

/// `count` elements cut into `parts` parts that differ by at most one element.
struct Partition {
  std::size_t count = 0;
  int parts = 1;
  std::size_t offset(int part) const noexcept {
    const auto p = static_cast<std::size_t>(part), n = static_cast<std::size_t>(parts);
    return count / n * p + std::min(p, count % n);
  }
  std::size_t size(int part) const noexcept { return offset(part + 1) - offset(part); }
};

inline ConstBuffer read_view(const void* base, std::size_t offset_bytes, std::size_t bytes) {
  return {bytes == 0 ? nullptr : static_cast<const std::byte*>(base) + offset_bytes, bytes,
          MemoryType::Host, nullptr};
}
inline Buffer write_view(void* base, std::size_t offset_bytes, std::size_t bytes) {
  return {bytes == 0 ? nullptr : static_cast<std::byte*>(base) + offset_bytes, bytes,
          MemoryType::Host, nullptr};
}

/// Messages of hops from here on belong to barriers inside other collectives.
inline constexpr std::uint64_t kBarrierHops = std::uint64_t{1} << 48;

/// Returns when all ranks have started this operation: rounds of messages to rank + distance, for
/// distance = 1, 2, 4, ... A caller that has done the first rounds itself gives where to go on.
Task<> dissemination(Operation& op, int distance);

}  // namespace tersum::runtime
