// One slice on its way through compression and exchange, and the three exchanges.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "src/engine/operation.hpp"
#include "src/engine/task.hpp"
#include "tersum/compressor.hpp"
#include "tersum/types.hpp"

namespace tersum::runtime {

/// A run of elements of one gradient in a slice.
struct SlicePart {
  std::size_t gradient = 0;  ///< index in the exchange
  std::size_t offset = 0;    ///< first element inside the gradient
  std::size_t count = 0;
  const std::byte* data = nullptr;   ///< the user's first element of the part; only read
  std::byte* result = nullptr;       ///< where the combined elements are staged
  CompressorState* state = nullptr;  ///< of the gradient, or null
  CompressorState* reducer_state =
      nullptr;           ///< of the gradient at the owner of its shards, or null
  SliceContext context;  ///< of the part: offset is that of its first element
};

/// What an exchange needs to know. Lives as long as the operation.
struct SliceJob {
  std::vector<SlicePart> parts;
  DType dtype = DType::Float32;
  ReduceOp op = ReduceOp::Average;
  std::shared_ptr<const Compressor> compressor;
  std::shared_ptr<const Compressor> reducer;  ///< encodes sums (Recompress)
  bool dense = false;  ///< nothing is compressed: elements travel as they are

  std::size_t count() const {
    std::size_t total = 0;
    for (const auto& part : parts) total += part.count;
    return total;
  }
};

/// Runs the exchange of the compressor's aggregation class. At the end every part's result holds
/// the sum or average over all ranks, bit-identical on all ranks, accumulated in fp32 in rank
/// order; the user's data is untouched.
Task<> exchange_slice(Operation& op, const SliceJob& job);

/// Linear: the bodies of all payloads are summed as vectors, then decoded. Also the way of dense
/// slices.
Task<> linear_exchange(Operation& op, const SliceJob& job);
/// Recompress: each rank owns a shard of blocks, decodes and adds everybody's payload of it,
/// encodes the sum again and hands that to all.
Task<> recompress_exchange(Operation& op, const SliceJob& job);
/// Sparse-merge: everybody's payloads to everybody, decoded and added in rank order.
Task<> sparse_merge_exchange(Operation& op, const SliceJob& job);

// ---- what the exchanges share ----

/// Payloads are laid one after the other, each at a multiple of 8 bytes.
constexpr std::size_t payload_stride(std::size_t bytes) noexcept {
  return (bytes + 7) / 8 * 8;
}

/// The part's elements as fp32: the user's own memory if it is fp32, else converted into `room`
/// ([part.count]).
std::span<const float> part_as_float(const SlicePart& part, DType dtype, std::span<float> room);

/// Writes fp32 values of the part to its result, converted to the gradient's dtype.
void store_result(const SlicePart& part, DType dtype, std::span<const float> values);

/// The payload that starts at `offset` in `bytes`: its extent is in its header, which is checked
/// against what is there. Error Protocol names `rank`, the sender.
std::span<const std::byte> payload_at(std::span<const std::byte> bytes, std::size_t offset,
                                      int rank);

/// values[i] /= ranks for averages; nothing for sums.
void finish_sum(ReduceOp op, int ranks, std::span<float> values) noexcept;

/// Scratch as floats.
inline std::span<float> float_scratch(Operation& op, std::size_t count) {
  auto bytes = op.scratch(count * sizeof(float));
  return {reinterpret_cast<float*>(bytes.data()), count};
}

}  // namespace tersum::runtime
