// Compressed all-reduces between the GPUs of one host.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "cuda/buffer.hpp"
#include "cuda/collectives.hpp"
#include "cuda/twin.hpp"
#include "tersum/compressor.hpp"

namespace tersum::gpu {

struct TwinParameters;

/// Must be the same on all ranks.
struct CompressedSettings {
  /// Most blocks (of 256 threads) of a kernel, 1 to 528; 0: seven eighths of what the smallest GPU
  /// has room for, 2 to 4 on each multiprocessor. What remains is for one other group that runs at
  /// once: each gets some blocks on every GPU. With more groups, or several ranks on one GPU, the
  /// blocks of all but one must fit on it together.
  int blocks = 0;
};

/// The step of training on the device, so that replays of a graph draw fresh numbers.
class StepCounter {
 public:
  /// Zero (in `stream`). Allocates.
  explicit StepCounter(StreamView stream);
  /// What comes later in `stream` is step `step`.
  void set(std::uint64_t step, StreamView stream) const;
  /// What comes later in `stream` is the next step.
  void advance(StreamView stream) const;
  /// Blocks the host until `stream` is done.
  std::uint64_t get(StreamView stream) const;
  /// For kernels: the step, then a word that is zero between operations.
  std::uint64_t* device() const noexcept { return memory_.as<std::uint64_t>(); }

 private:
  DeviceBuffer memory_;
};

/// A compressor as this room exchanges it: immutable, shared, re-entrant.
class CompressedMethod {
 public:
  /// How payloads of all ranks become one result.
  enum class Form {
    Fused,     ///< one kernel: encode, store into the owner's memory, add, encode, store, decode
    Composed,  ///< the same in several kernels: momentum, blocks that do not divide 512
    Linear,    ///< bodies of payloads are summed as vectors: random-k
    Sparse,    ///< everybody's payload to everybody, decoded and added: top-k
  };

  /// Error Unsupported if the compressor has no twin, or loses nothing ("none": use
  /// PeerCommunicator).
  explicit CompressedMethod(std::shared_ptr<const Compressor> compressor);
  ~CompressedMethod();
  CompressedMethod(CompressedMethod&&) noexcept;

  const Compressor& compressor() const noexcept { return *compressor_; }
  const Twin& twin() const noexcept { return *twin_; }
  const Twin& reducer() const noexcept { return *reducer_; }
  const TwinParameters& parameters() const noexcept { return *parameters_; }
  Form form() const noexcept { return form_; }
  /// True if who encodes a sum feeds back what that loses.
  bool feeds_back_sums() const noexcept;

  /// What compress() remembers of a gradient of `count` elements; cleared in `stream`. Null if the
  /// method has no feedback.
  std::unique_ptr<TwinState> make_state(std::size_t count, StreamView stream,
                                        TwinState::Steps steps) const;
  /// The same of the sums that this rank encodes, in their place in the gradient.
  std::unique_ptr<TwinState> make_reducer_state(std::size_t count, StreamView stream,
                                                TwinState::Steps steps) const;

  /// Device memory that an all-reduce of `count` elements between `ranks` needs beside that of the
  /// group; 256-byte aligned, not shared by calls that may run at the same time. May be 0.
  std::size_t workspace_bytes(std::size_t count, int ranks) const;

 private:
  std::shared_ptr<const Compressor> compressor_;
  std::unique_ptr<TwinParameters> parameters_;
  std::unique_ptr<Twin> twin_, reducer_;
  Form form_;
};

/// A run of elements of one gradient. Memory is the caller's.
struct CompressedSlice {
  const float* input = nullptr;  ///< [count], on the device; not changed unless it is the output
  float* output = nullptr;       ///< [count]; may be `input`, must not overlap it otherwise
  std::size_t count = 0;
  SliceContext context;  ///< offset: of element 0; rank: who draws here, different on all ranks
  const StepCounter* step = nullptr;      ///< if given: the step, in place of context.step
  bool count_step = false;                ///< the operation counts it on when it is done
  TwinState* state = nullptr;             ///< of the gradient, if the method has one
  TwinState* reducer_state = nullptr;     ///< likewise; both hold elements from context.offset on
  std::span<std::byte> workspace;         ///< workspace_bytes() of the method
  const DecodeStatus* decoded = nullptr;  ///< all forms but Fused: what was wrong with payloads
};

/// One rank's end of a group that sums and averages compressed: encode, exchange over peer memory,
/// accumulate in fp32 and rank order, and, but for sparse methods, encode the sum again. Results
/// are bit-identical on all ranks, and equal to those of a GradientExchange on the host with the
/// same seed, step, key and states; only NaN may differ in its payload, in fp16 and bf16.
///
/// Shares: the slice's blocks, in order, shared out evenly; rank r encodes the sums of share r. The
/// residual of that (two-way feedback) is kept at the rank that encodes it.
///
/// Calls put work into `stream` and return: none blocks the host or allocates. All can be captured
/// into graphs and replayed. With states whose steps are final (not for random-k, which needs both
/// values), and a StepCounter where the method draws, each replay is the next step. Operations of
/// one communicator follow each other, those of several may run at once (see
/// CompressedSettings::blocks). Streams, errors, aborts and time-outs are those of the
/// PeerCommunicator; after a failure outputs and next values of states are undefined.
class CompressedCommunicator {
 public:
  /// Collective, for `peers`' device. `peers` outlives this; `all_gather` is kept until the end.
  CompressedCommunicator(PeerCommunicator& peers, AllGatherBlobs all_gather,
                         CompressedSettings settings = {});
  ~CompressedCommunicator();
  CompressedCommunicator(const CompressedCommunicator&) = delete;
  CompressedCommunicator& operator=(const CompressedCommunicator&) = delete;

  /// output = sum or average over ranks of input, as `method` leaves it. Count 0 does nothing.
  /// Error InvalidArgument for other operators, tensors that are null or not aligned to 4 bytes,
  /// states or a workspace that do not fit.
  void all_reduce(const CompressedMethod& method, const CompressedSlice& slice, ReduceOp op,
                  StreamView stream);

  /// Collective: waits until all work of this communicator is done on all ranks and ends the
  /// mappings; to be called before close() of the peers, and not after a failure.
  void close();

  /// Collective, after renew() of the peers: the same.
  void renew(AllGatherBlobs all_gather);

  PeerCommunicator& peers() const noexcept;
  /// Device bytes of this rank's queues.
  std::size_t memory_bytes() const noexcept;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tersum::gpu
