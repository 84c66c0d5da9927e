// What a gradient exchange needs of the GPU that its gradients are on.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#include "src/exchange/slice_codec.hpp"
#include "tersum/types.hpp"

namespace tersum::runtime {

/// Memory, streams, compressor twins and states of one exchange on one device. Compression happens
/// on the device, before bytes leave it; messages go through pinned host memory.
class DeviceExchange {
 public:
  virtual ~DeviceExchange() = default;

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

  /// The way of one slice of this exchange. [engine]
  virtual std::unique_ptr<SliceCodec> codec(Operation& op, const SliceJob& job) = 0;

  /// Copies device memory. [engine]
  virtual Task<> copy(Operation& op, void* to, const void* from, std::size_t bytes) = 0;
};

/// For the calling thread's current device. `slices` of the exchange. Error Unsupported in builds
/// without CUDA, and without a GPU.
std::unique_ptr<DeviceExchange> open_device_exchange(Engine& engine, std::size_t slices);

}  // namespace tersum::runtime
