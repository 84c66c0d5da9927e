// What a gradient exchange needs of the GPU that its gradients are on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "src/exchange/slice_codec.hpp"
#include "tersum/types.hpp"

namespace tersum {

class Session;

namespace runtime {

/// Memory, streams, compressor twins and states of one exchange on one device. Compression happens
/// on the device, before bytes leave it. Between GPUs of one host slices go from memory to memory,
/// otherwise as messages through pinned host memory.
class DeviceGradients {
 public:
  virtual ~DeviceGradients() = default;

  /// State for a gradient of `count` elements under `compressor`: as Compressor::make_state(), and
  /// with the same saved bytes. From now on slices may use the compressor. Error Unsupported if it
  /// has no GPU form.
  virtual std::unique_ptr<CompressorState> make_state(const Compressor& compressor,
                                                      std::size_t count) = 0;

  /// Device memory that lives as long as this. Error OutOfMemory.
  virtual std::byte* allocate(std::size_t bytes) = 0;

  /// Error InvalidArgument, which begins with `name`, unless `data` is memory of this device.
  virtual void check_memory(const void* data, const std::string& name) const = 0;

  /// Calls `function` on the engine's thread when all that is in `stream` now is done, with what
  /// went wrong if something did. Does not block. One call at a time.
  virtual void when_reached(Stream stream, std::function<void(const Status&)> function) = 0;

  /// Opens the ways that need all ranks. Collective over `group`, blocks.
  virtual void connect(Session& session, const std::shared_ptr<Group>& group) = 0;

  /// Makes what each slice will need of its own: all of the exchange's slices in device memory,
  /// once, after connect() and before any exchange; and memory for the messages of those that
  /// `credit_bytes` lets be under way at a time. From then on streams may wait for slices, and CUDA
  /// then lets nobody allocate. Collective, as connect(): throws on all ranks if it fails on one.
  virtual void prepare(std::span<const std::shared_ptr<const SliceJob>> jobs,
                       std::size_t credit_bytes) = 0;

  /// 0 if each rank has the residuals of its own gradients. Else they are shared by host, and this
  /// says by which, on all ranks alike: states are for the same hosts only.
  virtual std::uint64_t layout_digest() const noexcept = 0;

  /// Combines one slice over all ranks. [engine]
  virtual Task<> exchange(Operation& op, const SliceJob& job) = 0;

  /// A round has failed: ends what waits for other ranks. [engine]
  virtual void abort() noexcept = 0;
  /// Makes it usable again, if any rank has called abort(). Collective, as connect(), when nothing
  /// runs here any more.
  virtual void recover() = 0;

  /// Copies device memory. [engine]
  virtual Task<> copy(Operation& op, void* to, const void* from, std::size_t bytes) = 0;
};

/// For the calling thread's current device. `slices` of the exchange. Error Unsupported in builds
/// without CUDA, and without a GPU.
std::unique_ptr<DeviceGradients> open_device_gradients(Engine& engine, std::size_t slices);

}  // namespace runtime
}  // namespace tersum
