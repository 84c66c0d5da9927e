// What a coroutine awaits of a stream.
#pragma once

#include "cuda/event_pool.hpp"
#include "src/engine/engine.hpp"
#include "src/engine/external_event.hpp"

namespace tersum::runtime {

/// Happens when a stream has done what was in it. The engine looks at it all the time: for what
/// takes microseconds. Lives until it has happened; engine's thread.
class StreamEvent final : private Engine::Polled {
 public:
  /// All that is in `stream` now.
  StreamEvent(Engine& engine, gpu::EventPool& pool, int device, gpu::StreamView stream)
      : pool_(pool), device_(device), event_(pool.take(device)) {
    event_.record(stream);
    engine.poll(*this);
  }
  ~StreamEvent() { pool_.give(device_, std::move(event_)); }
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

  gpu::EventPool& pool_;
  const int device_;
  gpu::Event event_;
  ExternalEvent happened_;
};

}  // namespace tersum::runtime
