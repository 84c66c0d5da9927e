// One gradient that is all-reduced compressed in every step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "cuda/compressed.hpp"

namespace tersum::gpu {

/// A compressor for one gradient, with everything that its all-reduces need: feedback, workspace,
/// and the step. One call is one step; it can be captured, and each replay of the graph is the next
/// step. There is no rollback: for that use CompressedCommunicator with provisional states.
class CompressedAllReduce {
 public:
  /// For a gradient of `count` elements; must be made with the same arguments on all ranks. `key`
  /// tells gradients with the same seed apart (compressors/hash.hpp). Allocates; memory is cleared
  /// in `stream`. `communicator` outlives this. Error Unsupported for methods without a form on the
  /// GPU, and random-k with feedback.
  CompressedAllReduce(CompressedCommunicator& communicator,
                      std::shared_ptr<const Compressor> compressor, std::size_t count,
                      std::uint64_t seed, std::uint64_t key, StreamView stream);

  /// output[count] = sum or average over ranks of input[count], as CompressedCommunicator does it.
  void all_reduce(const float* input, float* output, ReduceOp op, StreamView stream);

  std::size_t count() const noexcept { return count_; }
  const CompressedMethod& method() const noexcept { return method_; }

  /// Step and feedback as bytes, of this rank, and back. load() throws InvalidArgument, with
  /// nothing changed, for what save() of this compressor and count did not write. Both block the
  /// host until `stream` is done.
  std::vector<std::byte> save(StreamView stream) const;
  void load(std::span<const std::byte> bytes, StreamView stream);

  /// Copies to the host what was wrong with payloads of peers; then status() is right when `stream`
  /// is done. Neither blocks. What is wrong with peers themselves is told by theirs.
  void fetch_status(StreamView stream) const { decoded_.fetch(stream); }
  Status status() const { return decoded_.status(); }

 private:
  CompressedCommunicator& communicator_;
  CompressedMethod method_;
  std::size_t count_;
  SliceContext context_;
  StepCounter step_;
  std::unique_ptr<TwinState> state_, reducer_state_;
  DeviceBuffer workspace_;
  DecodeStatus decoded_;
};

}  // namespace tersum::gpu
