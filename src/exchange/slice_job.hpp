// One slice on its way through compression and exchange, and the three exchanges.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
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

/// Bytes that a slice takes of the credit at least: the cost of a message does not fall with its
/// bytes.
constexpr std::size_t kSmallestCharge = 4096;

class DeviceGradients;

/// What an exchange needs to know. Lives as long as the operation.
struct SliceJob {
  std::vector<SlicePart> parts;
  DType dtype = DType::Float32;
  ReduceOp op = ReduceOp::Average;
  std::shared_ptr<const Compressor> compressor;
  std::shared_ptr<const Compressor> reducer;  ///< encodes sums (Recompress)
  bool dense = false;                 ///< nothing is compressed: elements travel as they are
  bool partial = false;               ///< dense: data are accumulators of dtype, sums of hosts
  std::uint32_t slice = 0;            ///< its index in the exchange
  DeviceGradients* device = nullptr;  ///< where the parts' memory is; null: host memory

  std::size_t count() const {
    std::size_t total = 0;
    for (const auto& part : parts) total += part.count;
    return total;
  }
};

class SliceCodec;

/// Runs the exchange of the compressor's aggregation class. At the end every part's result holds
/// the sum or average over all ranks, bit-identical on all ranks, accumulated in fp32 in rank
/// order; the user's data is untouched.
Task<> exchange_slice(Operation& op, const SliceJob& job);

/// The same for a slice that travels as messages.
Task<> exchange_messages(Operation& op, const SliceJob& job, SliceCodec& codec);

/// Dense: elements are summed as they are.
Task<> dense_exchange(Operation& op, const SliceJob& job, SliceCodec& codec);
/// Linear: the bodies of all payloads are summed as vectors, then decoded.
Task<> linear_exchange(Operation& op, const SliceJob& job, SliceCodec& codec);
/// Recompress: each rank owns a shard of blocks, decodes and adds everybody's payload of it,
/// encodes the sum again and hands that to all.
Task<> recompress_exchange(Operation& op, const SliceJob& job, SliceCodec& codec);
/// Sparse-merge: everybody's payloads to everybody, decoded and added in rank order.
Task<> sparse_merge_exchange(Operation& op, const SliceJob& job, SliceCodec& codec);

}  // namespace tersum::runtime
