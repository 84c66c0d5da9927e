// Device memory for measuring: images of the host's buffers on this rank's GPU.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "perf/buffers.hpp"
#include "perf/timing.hpp"
#include "tersum/communicator.hpp"

namespace tersum::perf {

/// One image for each of two rings, on GPU rank % GPUs, and the stream in which all calls go.
class DeviceMemory {
 public:
  /// Error Unsupported in builds without CUDA and where there is no GPU.
  static std::unique_ptr<DeviceMemory> make(int rank, BufferRing& inputs, BufferRing& outputs);
  virtual ~DeviceMemory() = default;

  virtual Stream stream() const = 0;
  /// What on the device is the image of an address in one of the rings.
  virtual void* image(const void* host) const = 0;
  /// Both rings to the device, or back. Block.
  virtual void upload() = 0;
  virtual void download() = 0;

  /// Copies on the device. Blocks.
  virtual void copy(void* to, const void* from, std::size_t bytes) = 0;

  /// Times batches of `iterations` calls that follow each other in the stream, as a graph if asked
  /// for, by the device's clock; a call's time is its batch's, divided. `call` puts one call into
  /// the stream. Collective.
  virtual Timing time(Communicator& communicator, int warmup, int iterations, bool graph,
                      const std::function<void(int)>& call) = 0;
};

/// Of GPU 0, with its driver; "none" without.
std::string device_name();

}  // namespace tersum::perf
