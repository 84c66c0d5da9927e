// GradientExchange: what training loops use. Gradients are registered once, submitted as the
// backward pass makes them, and awaited in the order in which the next forward pass needs them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tersum/communicator.hpp"

namespace tersum {

/// One gradient of the model.
struct Gradient {
  std::string key;        ///< unique name: "conv1.weight"
  std::size_t count = 0;  ///< elements
  DType dtype = DType::Float32;
  /// Where it is. Cuda: on the device that is current when the exchange is made, which compresses
  /// it there; such gradients never share a slice with others.
  MemoryType memory = MemoryType::Host;
  int position = 0;  ///< place in the forward pass: 0 is needed first and is the most urgent
  std::optional<std::string>
      compressor;  ///< spec for this gradient; beats rules, the general setting and the size below
                   ///< which nothing is compressed. Integers and fp64: none or "none" only
};

/// Settings of one exchange; members that are not set come from the communicator's Config.
struct ExchangeOptions {
  std::optional<std::string> compressor;
  std::optional<std::string> compressor_rules;
  std::optional<std::size_t> compress_min_bytes;
  std::optional<std::size_t> bucket_bytes;
  std::optional<std::size_t> slice_bytes;
  std::optional<std::size_t> credit_bytes;
  std::optional<std::string> policy;
  std::optional<std::uint64_t> seed;
  ReduceOp op = ReduceOp::Average;  ///< Average or Sum
};

/// Counters since the exchange was made.
struct ExchangeStatistics {
  std::uint64_t steps = 0;
  std::uint64_t sent_bytes = 0;  ///< handed to the transport for other ranks
  std::uint64_t dense_bytes =
      0;  ///< what dense fp32 all-reduce would have sent: 2 (n-1)/n of 4 bytes an element
  std::uint64_t slices = 0;
  std::uint64_t overdrawn_slices =
      0;  ///< admitted beyond the credit because a peer had started them
};

/// A part of the plan, for people and tests.
struct SliceReport {
  std::string keys;  ///< gradients in it, comma-separated
  int bucket = 0;
  int priority = 0;
  std::size_t bytes = 0;   ///< uncompressed
  std::string compressor;  ///< canonical spec
};

class ExchangeState;

/// Exchanges the gradients of one model, step by step. Collective: all ranks make it with equal
/// gradients and options (a hash of the plan is compared; a difference is Mismatch with both
/// views). Every gradient is submitted once a step, in any order, by any thread. The step ends with
/// commit(), or by itself when the next step's first submit comes after everything is done. A
/// shared handle; the communicator must be valid when it is made.
class GradientExchange {
 public:
  /// Error InvalidArgument names the gradient or option that is wrong, OutOfMemory the gradient
  /// that this machine has no room for.
  GradientExchange(Communicator communicator, std::vector<Gradient> gradients,
                   const ExchangeOptions& options = {});

  /// Hands data[count] of gradient `key` over; it is replaced by the average (or sum) over ranks
  /// when the Work is done, and is unchanged if it fails. The memory stays untouched until then.
  /// Device memory is read when all that is in `stream` now is done; never blocks.
  Work submit(std::string_view key, void* data, Stream stream = {});
  /// The same by the gradient's index in the list given at construction.
  Work submit(std::size_t index, void* data, Stream stream = {});

  /// Waits for one gradient of the current step; throws its Error. InvalidState if it was not
  /// submitted; Timeout, while it is pending, as Work::wait().
  void wait(std::string_view key);
  void wait(std::size_t index);
  /// Waits for all that were submitted in this step; throws the first Error. Timeout, while some
  /// are pending, as wait().
  void wait_all();

  /// Ends the step: residuals of this step become valid. Waits for pending gradients first. Throws
  /// if one failed (then call rollback()).
  void commit();
  /// Discards the step: waits for what is pending, forgets its residuals. All ranks must do it for
  /// the same step.
  void rollback();

  /// Compressor states and the step number as bytes, for a checkpoint of this rank; and back, into
  /// an exchange with the same plan on the same rank. Between steps only. Error InvalidArgument if
  /// the bytes are not of this plan.
  std::vector<std::byte> save() const;
  void load(std::span<const std::byte> bytes);

  std::vector<SliceReport> plan() const;
  std::uint64_t plan_hash() const;
  ExchangeStatistics statistics() const;

 private:
  std::shared_ptr<ExchangeState> state_;
};

}  // namespace tersum
