// Collectives on device memory between the ranks of one host: straight from the caller's thread
// into the caller's stream, past the engine.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <vector>

#include "src/engine/signature.hpp"
#include "tersum/types.hpp"
#include "tersum/work.hpp"

namespace tersum {

class CommunicatorState;

namespace runtime {

/// Arguments of one call, checked already.
struct DeviceCall {
  CallKind kind;
  const void* input = nullptr;
  void* output = nullptr;
  std::size_t count = 0;  ///< all elements together where ranks have counts of their own
  DType dtype = DType::Float32;
  /// AllReduce of partial results: of how many ranks these are, all together: fp32 in the
  /// input, a 16-bit dtype in the output. 0: values of ranks.
  int contributors = 0;
  ReduceOp op = ReduceOp::Sum;
  int peer = -1;         ///< root, or who is sent to or received from
  bool sending = false;  ///< PointToPoint: which end this is
  double pre_scale = 1.0, post_scale = 1.0;
  std::chrono::milliseconds timeout{0};  ///< 0: TERSUM_TIMEOUT_MS. Peer memory has its own
  Stream stream{};
  bool stream_ordered = false;  ///< CallOptions::stream_ordered
  /// AllGatherV, AllToAllV: what comes from each rank.
  std::vector<std::size_t> receive_counts{};
  std::vector<std::size_t> send_counts{};  ///< AllToAllV: what goes to each rank
};

/// One communicator's way over peer memory. Any thread.
class DeviceCollectives {
 public:
  virtual ~DeviceCollectives() = default;

  /// Puts the call into its stream. The Work is done when the stream has done it; that of a
  /// stream-ordered call or of one that is captured into a graph is done at once, and the call and
  /// the graph's replays are the caller's to wait for.
  virtual Work start(const DeviceCall& call) = 0;

  /// The failure of a call that no Work tells of, or Ok.
  virtual Status status() { return Status::ok(); }

  /// Ends all kernels here, running and future: something has failed. Never blocks.
  virtual void abort() noexcept = 0;

  /// Blocks until the works of this group are done. False if it
  /// must be kept all the same until all ranks have said good-bye.
  virtual bool drain() noexcept = 0;

  /// The engine is gone; works that are left only report what has happened to them.
  virtual void close() noexcept = 0;
};

/// Bytes of one element of the input.
std::size_t input_element_bytes(const DeviceCall& call) noexcept;

/// What has to agree on all ranks.
Signature signature_of(const DeviceCall& call) noexcept;

/// What groups leave to those that come after them; null in builds without CUDA.
struct DevicePools;
std::shared_ptr<DevicePools> make_device_pools();

/// True if `data` is memory of a GPU. False in builds without CUDA and where there is no GPU.
bool is_device_memory(const void* data) noexcept;

/// The same for calls that cannot spare the time to ask the driver: an address that was in device
/// memory once is taken to be so still.
bool is_known_device_memory(const void* data) noexcept;

/// Collective: all ranks of the group call it at the same place in their order of calls. For the
/// calling thread's current device. Error Unsupported on every rank if the ranks do not share a
/// host, or their GPUs cannot map each other's memory.
std::shared_ptr<DeviceCollectives> open_device_collectives(CommunicatorState& communicator);

}  // namespace runtime
}  // namespace tersum
