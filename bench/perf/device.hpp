// Device memory for measuring: images of the host's buffers on this rank's GPU.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

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
  enum class Part { All, FirstSlot };
  /// Both rings, or the first slot of each, to the device, or back. Block.
  virtual void upload(Part part = Part::All) = 0;
  virtual void download(Part part = Part::All) = 0;

  /// Copies on the device. Blocks.
  virtual void copy(void* to, const void* from, std::size_t bytes) = 0;

  /// Puts call number i into the stream.
  using Enqueue = std::function<void(int i)>;

  /// Times batches of `iterations` calls that follow each other in the stream, as a graph if asked
  /// for, by the device's clock; a call's time is its batch's, divided. Batches of the contenders
  /// take turns. Returns a timing for each of them. Collective.
  virtual std::vector<Timing> time(Communicator& communicator, int warmup, int iterations,
                                   bool graph, const std::vector<Enqueue>& contenders) = 0;
  /// Calls of each contender that time() lets the device make.
  virtual int calls(int warmup, int iterations) const = 0;
};

/// Of GPU 0, with its driver; "none" without.
std::string device_name();

}  // namespace tersum::perf
