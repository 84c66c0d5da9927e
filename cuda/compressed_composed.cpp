#include "cuda/compressed_composed.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <utility>

#include "compressors/payload.hpp"
#include "cuda/compressed_plan.hpp"
#include "cuda/divide.hpp"
#include "cuda/error.hpp"
#include "cuda/twin_methods.hpp"

namespace tersum::gpu {
namespace {

constexpr std::size_t round_up(std::size_t bytes) {
  return (bytes + 255) / 256 * 256;
}

/// A workspace, cut: payloads at equal distances, one per rank, and what twins need.
struct Room {
  std::size_t stride = 0;        ///< of payloads
  std::byte* outbox = nullptr;   ///< Form::Composed: encoded shares, by owner
  std::byte* inbox = nullptr;    ///< everybody's payload
  std::byte* results = nullptr;  ///< Form::Composed: encoded sums, by owner
  std::span<std::byte> twin;
  std::size_t bytes = 0;
};

Room cut_room(const CompressedMethod& method, std::size_t count, int ranks, std::byte* memory) {
  Room room;
  std::size_t longest = count;
  if (method.form() == CompressedMethod::Form::Composed) {
    std::uint64_t begin[kMaxPeers + 1];
    share_out(count, share_unit(method), ranks, begin);
    longest = begin[1];  // the first share is never shorter than another
  }
  const auto take = [&](std::size_t bytes) {
    std::byte* part = memory == nullptr ? nullptr : memory + room.bytes;
    room.bytes += round_up(bytes);
    return part;
  };
  room.stride = round_up(
      std::max(method.twin().payload_bytes(longest), method.reducer().payload_bytes(longest)));
  const std::size_t box = room.stride * static_cast<std::size_t>(ranks);
  if (method.form() == CompressedMethod::Form::Composed) {
    room.outbox = take(box);
    room.results = take(box);
  }
  room.inbox = take(method.form() == CompressedMethod::Form::Linear ? 2 * room.stride : box);
  const std::size_t twin =
      std::max(method.twin().workspace_bytes(longest), method.reducer().workspace_bytes(longest));
  room.twin = {take(twin), twin};
  return room;
}

/// One all-reduce on its way.
struct Steps {
  PeerCommunicator& peers;
  const CompressedMethod& method;
  const CompressedSlice& slice;
  ReduceOp op;
  StreamView stream;
  Room room;

  int ranks() const { return peers.size(); }
  std::size_t own() const { return static_cast<std::size_t>(peers.rank()); }

  TwinContext context(std::uint64_t first, std::uint32_t encoder) const {
    TwinContext context(slice.context, slice.step == nullptr ? nullptr : slice.step->device());
    context.offset += first;
    context.rank = encoder;
    return context;
  }
  TwinContext context() const { return context(0, slice.context.rank); }

  std::span<std::byte> payload(const Twin& twin, std::byte* box, std::size_t index,
                               std::size_t count) const {
    return {box + index * room.stride, twin.payload_bytes(count)};
  }

  void finish_sum(float* values, std::size_t count) const {
    if (op == ReduceOp::Average) {
      divide(stream, values, count, static_cast<float>(ranks()));
    }
  }

  void gather(std::byte* box) const {
    peers.all_gather(box + own() * room.stride, box, room.stride, DType::UInt8, stream);
  }

  // Everybody's payload to everybody; sums begin at zero, as on the host.
  void merge() const {
    const Twin& twin = method.twin();
    const auto mine = payload(twin, room.inbox, own(), slice.count);
    twin.compress(stream, slice.input, slice.count, context(), slice.state, mine.data(), room.twin);
    gather(room.inbox);
    check(cudaMemsetAsync(slice.output, 0, slice.count * sizeof(float), stream.get()),
          "cudaMemsetAsync");
    for (std::size_t r = 0; r < static_cast<std::size_t>(ranks()); ++r) {
      twin.decompress_add(stream, payload(twin, room.inbox, r, slice.count), context(), 1.0f,
                          slice.output, slice.count, room.twin, *slice.decoded);
    }
    finish_sum(slice.output, slice.count);
  }

  // The sum of the bodies is the body of the sum; headers stay at home.
  void sum_bodies() const {
    const Twin& twin = method.twin();
    const auto mine = payload(twin, room.inbox, 0, slice.count);
    const auto sums = payload(twin, room.inbox, 1, slice.count);
    twin.compress(stream, slice.input, slice.count, context(), slice.state, mine.data(), room.twin);
    constexpr std::size_t kHeader = compressors::kHeaderBytes;
    check(
        cudaMemcpyAsync(sums.data(), mine.data(), kHeader, cudaMemcpyDeviceToDevice, stream.get()),
        "cudaMemcpyAsync");
    const DType dtype = method.compressor().traits().payload_dtype;
    peers.all_reduce(mine.data() + kHeader, sums.data() + kHeader,
                     (mine.size() - kHeader) / element_bytes(dtype), dtype, op, stream);
    twin.decompress(stream, sums, context(), slice.output, slice.count, room.twin, *slice.decoded);
  }

  // Shares to their owners, who add and encode again.
  void recompress() const {
    const Twin& twin = method.twin();
    const Twin& reducer = method.reducer();
    std::uint64_t begin[kMaxPeers + 1];
    share_out(slice.count, share_unit(method), ranks(), begin);
    const auto count_of = [&](std::size_t r) { return begin[r + 1] - begin[r]; };
    const auto all = static_cast<std::size_t>(ranks());
    for (std::size_t r = 0; r < all; ++r) {
      if (count_of(r) == 0) continue;
      twin.compress(stream, slice.input + begin[r], count_of(r),
                    context(begin[r], slice.context.rank), slice.state,
                    payload(twin, room.outbox, r, count_of(r)).data(), room.twin);
    }
    peers.all_to_all(room.outbox, room.inbox, room.stride, DType::UInt8, stream);
    float* const sums = slice.output + begin[own()];
    const std::size_t count = count_of(own());
    for (std::size_t r = 0; r < all && count > 0; ++r) {
      const auto arrived = payload(twin, room.inbox, r, count);
      if (r == 0) {
        twin.decompress(stream, arrived, context(), sums, count, room.twin, *slice.decoded);
      } else {
        twin.decompress_add(stream, arrived, context(), 1.0f, sums, count, room.twin,
                            *slice.decoded);
      }
    }
    finish_sum(sums, count);
    if (count > 0) {
      reducer.compress(stream, sums, count, context(begin[own()], kReducerRank),
                       slice.reducer_state, payload(reducer, room.results, own(), count).data(),
                       room.twin);
    }
    gather(room.results);
    for (std::size_t r = 0; r < all; ++r) {
      if (count_of(r) == 0) continue;
      reducer.decompress(stream, payload(reducer, room.results, r, count_of(r)), context(),
                         slice.output + begin[r], count_of(r), room.twin, *slice.decoded);
    }
  }
};

}  // namespace

std::size_t composed_bytes(const CompressedMethod& method, std::size_t count, int ranks) {
  if (method.form() == CompressedMethod::Form::Fused) return 0;
  return cut_room(method, count, ranks, nullptr).bytes;
}

void run_composed(PeerCommunicator& peers, const CompressedMethod& method,
                  const CompressedSlice& slice, ReduceOp op, StreamView stream) {
  const Steps steps{peers,  method,
                    slice,  op,
                    stream, cut_room(method, slice.count, peers.size(), slice.workspace.data())};
  switch (method.form()) {
    case CompressedMethod::Form::Sparse:
      steps.merge();
      break;
    case CompressedMethod::Form::Linear:
      steps.sum_bodies();
      break;
    default:
      steps.recompress();
  }
  if (slice.step != nullptr && slice.count_step) slice.step->advance(stream);
}

}  // namespace tersum::gpu
