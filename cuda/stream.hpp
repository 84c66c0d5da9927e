// Streams: one that is owned, and a view of anybody's.
#pragma once

#include <cuda_runtime_api.h>

#include "tersum/types.hpp"

namespace tersum::gpu {

class Event;

/// A stream that somebody else owns and keeps alive: a framework's, or a Stream below. Cheap to
/// copy. Null is CUDA's default stream. Any thread.
class StreamView {
 public:
  StreamView() = default;
  StreamView(cudaStream_t stream) noexcept : stream_(stream) {}  // NOLINT: as good as the handle
  StreamView(tersum::Stream stream) noexcept                     // NOLINT
      : stream_(static_cast<cudaStream_t>(stream.handle)) {}

  cudaStream_t get() const noexcept { return stream_; }
  operator tersum::Stream() const noexcept { return {stream_}; }

  /// What is put into this stream from now on starts after `event`. Does not block the host.
  void wait(const Event& event) const;
  /// Blocks the host until all work of the stream is done; reports errors of that work. Not for
  /// hot paths.
  void synchronize() const;
  /// True if all work of the stream is done. Does not block.
  bool is_done() const;
  /// True while the stream records a CUDA graph.
  bool is_capturing() const;

  friend bool operator==(StreamView, StreamView) = default;

 private:
  cudaStream_t stream_ = nullptr;
};

/// How the device orders blocks that wait for a multiprocessor.
enum class StreamPriority { Normal, High };

/// Owns a non-blocking stream (one that does not wait for the default stream) of the device that
/// is current when it is made. Movable; a moved-from stream owns nothing. Work that is still in the
/// stream when it is destroyed runs to its end.
class Stream {
 public:
  explicit Stream(StreamPriority priority = StreamPriority::Normal);
  Stream(Stream&& other) noexcept;
  Stream& operator=(Stream&& other) noexcept;
  ~Stream();

  StreamView view() const noexcept { return stream_; }
  operator StreamView() const noexcept { return stream_; }
  cudaStream_t get() const noexcept { return stream_; }
  void wait(const Event& event) const { view().wait(event); }
  void synchronize() const { view().synchronize(); }

 private:
  cudaStream_t stream_ = nullptr;
};

}  // namespace tersum::gpu
