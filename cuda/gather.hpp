// Gradients into their bucket and back, all of a bucket in one launch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "cuda/buffer.hpp"
#include "cuda/event.hpp"
#include "cuda/stream.hpp"
#include "tersum/types.hpp"

namespace tersum::gpu {

/// One tensor of a bucket: `count` contiguous elements of a floating `dtype` at `data` on the
/// device, aligned to their size, which are the fp32 elements from `offset` on of the bucket.
struct BucketTensor {
  void* data = nullptr;
  std::size_t count = 0;
  DType dtype = DType::Float32;
  std::size_t offset = 0;
};

/// Where the tensors of one bucket lie, kept in device memory so that a step needs one launch for
/// hundreds of them. Tensors do not overlap in the bucket; what lies between them is not touched.
/// Accesses are 16 bytes wide where a tensor and its place in the bucket are aligned to 16 bytes,
/// element by element elsewhere. Used by one thread at a time.
class GatherPlan {
 public:
  /// Uploads the table in `stream`; later calls are in this stream or ordered after it. Allocates.
  /// Error InvalidArgument for a dtype that is not floating and for misaligned data.
  GatherPlan(std::span<const BucketTensor> tensors, StreamView stream);

  /// The tensors are at other addresses from now on (in the order of `stream`): one for each
  /// that is not empty, with the same counts and dtypes. Does not allocate, and blocks the host
  /// only if the last but one rebind() has not been carried out yet.
  void rebind(std::span<void* const> data, StreamView stream);

  /// bucket[offset + i] = scale * fp32(tensor[i]), rounded after each step. `bucket` is 4-byte
  /// aligned; 16 is faster.
  void gather(StreamView stream, float* bucket, float scale = 1.0f) const;
  /// tensor[i] = dtype(scale * bucket[offset + i]), rounded to nearest even after each step.
  void scatter(StreamView stream, const float* bucket, float scale = 1.0f) const;

  /// Elements of all tensors.
  std::size_t count() const noexcept { return count_; }

  /// A row of the device table.
  struct Row {
    std::byte* data;
    std::size_t count;
    std::size_t offset;
    std::uint32_t first_tile;
    DType dtype;
  };

 private:
  void upload(StreamView stream);

  std::vector<Row> rows_;
  std::size_t count_ = 0;
  std::uint32_t tiles_ = 0;
  DeviceBuffer table_;
  PinnedBuffer staging_[2];
  Event uploaded_[2];
  int turn_ = 0;
};

}  // namespace tersum::gpu
