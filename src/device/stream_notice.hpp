// The host hears how far a stream has come, without asking.
#pragma once

#include "cuda/event_pool.hpp"
#include "cuda/stream.hpp"
#include "tersum/error.hpp"

namespace tersum::runtime {

/// Somebody who waits for a stream.
class StreamListener {
 public:
  /// Called once for each notify(), in the order of these for one stream, on a thread of its own:
  /// it must not block. Not Ok: the device has failed.
  virtual void on_reached(const Status& status) noexcept = 0;

 protected:
  ~StreamListener() = default;
};

/// Has `listener` called when all that is in `stream` now is done; it must live until then. Does
/// not block. Not while the stream is captured. With CUDA before 12.8 the stream's device is
/// current.
void notify(gpu::StreamView stream, StreamListener& listener);
/// The same with an event of `events`, which lives until the listener is called.
void notify(gpu::StreamView stream, StreamListener& listener, gpu::EventPool& events);

}  // namespace tersum::runtime
