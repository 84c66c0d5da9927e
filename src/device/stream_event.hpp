// What a coroutine awaits of a stream.
#pragma once

#include <memory>
#include <vector>

#include "cuda/buffer.hpp"
#include "cuda/event.hpp"
#include "src/engine/engine.hpp"
#include "src/engine/external_event.hpp"

namespace tersum::runtime {

/// Events of one device that wander from wait to wait. One thread at a time.
class EventCache {
 public:
  explicit EventCache(int device) : device_(device) {}

  gpu::Event take() {
    if (free_.empty()) {
      const gpu::DeviceGuard guard(device_);
      return gpu::Event();
    }
    gpu::Event event = std::move(free_.back());
    free_.pop_back();
    return event;
  }
  void give(gpu::Event event) { free_.push_back(std::move(event)); }

 private:
  const int device_;
  std::vector<gpu::Event> free_;
};

/// Happens when a stream has done what was in it. The engine looks at it all the time: for what
/// takes microseconds. Lives until it has happened; engine's thread.
class StreamEvent final : private Engine::Polled {
 public:
  /// All that is in `stream` now.
  StreamEvent(Engine& engine, EventCache& cache, gpu::StreamView stream)
      : cache_(cache), event_(cache.take()) {
    event_.record(stream);
    engine.poll(*this);
  }
  ~StreamEvent() { cache_.give(std::move(event_)); }
  StreamEvent(const StreamEvent&) = delete;
  StreamEvent& operator=(const StreamEvent&) = delete;

  auto in(Operation& operation) noexcept { return happened_.in(operation); }

 private:
  bool look() noexcept override {
    Status status;
    try {
      if (!event_.is_done()) return false;
    } catch (const Error& error) {
      status = error.status();
    }
    happened_.happen(status);
    return true;
  }

  EventCache& cache_;
  gpu::Event event_;
  ExternalEvent happened_;
};

}  // namespace tersum::runtime
