// Work: a handle on one operation that ends later.
#pragma once

#include <chrono>
#include <functional>
#include <memory>

#include "tersum/error.hpp"
#include "tersum/stage.hpp"
#include "tersum/types.hpp"

namespace tersum {

class WorkState;

/// Completion of one operation. A cheap shared handle: copy it freely, keep it as long as you like,
/// use it from any thread. It never stays pending: success, failure, deadline or the end of its
/// communicator completes it.
class Work {
 public:
  Work() = default;
  explicit Work(std::shared_ptr<WorkState> state) : state_(std::move(state)) {}

  /// False for a default-constructed handle; all other calls need a valid one (Error InvalidState).
  bool valid() const noexcept { return state_ != nullptr; }

  /// True once the operation has ended, well or badly. Never blocks.
  bool done() const;

  /// Blocks until the operation has ended; throws its Error if it failed. Error Timeout, while it
  /// is still pending, if it is of a gradient that waits for others which were never submitted;
  /// names them.
  void wait() const;

  /// As wait(), for at most `timeout`. Returns false if the operation is still pending then (it
  /// goes on).
  bool wait(std::chrono::nanoseconds timeout) const;

  /// What is put into `stream` from now on starts after the operation has ended, well or badly;
  /// does not block the host. For results in device memory, and streams of the device that is
  /// current. Error Unsupported without a GPU, and while the stream is captured into a graph.
  /// A stream that waits takes one of CUDA's queues for kernels, of which our own need some. For a
  /// second stream that waits at a time the call blocks as wait() does (but throws only Timeout),
  /// and already for the first one if CUDA_DEVICE_MAX_CONNECTIONS is less than 8; so submit all
  /// gradients of a step before. With 32, CUDA's most, 13 can wait: programs with more than three
  /// other busy streams set that.
  /// What makes its caller wait inside CUDA until the work is done (copies of pageable memory, more
  /// kernels than a queue of CUDA takes, about a thousand) keeps other threads from allocating
  /// until then. Gradients go on, unless UCX uses CUDA (see TERSUM_DEVICE_STAGING): wait() first
  /// there.
  void wait_on(Stream stream) const;

  /// Ok while pending and after success; the error after a failure. Never blocks.
  Status status() const;

  /// Where on the road it is now.
  Stage stage() const;

  /// Calls `callback` once, with the outcome, from the engine's thread (or at once, in this thread,
  /// when the operation has ended already). The callback must not block and must not throw. Error
  /// InvalidArgument if it is empty.
  void on_complete(std::function<void(const Status&)> callback) const;

 private:
  std::shared_ptr<WorkState> state_;
};

}  // namespace tersum
