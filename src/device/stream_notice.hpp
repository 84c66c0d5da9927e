// The host hears how far a stream has come, without asking.
#pragma once

#include "cuda/stream.hpp"
#include "tersum/error.hpp"

namespace tersum::runtime {

/// Somebody who waits for a stream.
class StreamListener {
 public:
  /// Called once for each notify(), on a thread of CUDA's: it must not block, must not call CUDA,
  /// and what follows in the stream waits for it to return. Not Ok: the device has failed.
  virtual void on_reached(const Status& status) noexcept = 0;

 protected:
  ~StreamListener() = default;
};

/// Has `listener` called when all that is in `stream` now is done; it must live until then. Does
/// not block. Not while the stream is captured.
void notify(gpu::StreamView stream, StreamListener& listener);

}  // namespace tersum::runtime
