// What a coroutine awaits of a stream.
#pragma once

#include "src/device/stream_notice.hpp"
#include "src/engine/engine.hpp"
#include "src/engine/external_event.hpp"

namespace tersum::runtime {

/// Happens on the engine's thread when a stream has done what was in it. Lives until it has
/// happened.
class StreamEvent final : private StreamListener {
 public:
  /// All that is in `stream` now.
  StreamEvent(Engine& engine, gpu::StreamView stream) : engine_(engine) { notify(stream, *this); }
  StreamEvent(const StreamEvent&) = delete;
  StreamEvent& operator=(const StreamEvent&) = delete;

  auto in(Operation& operation) noexcept { return event_.in(operation); }

 private:
  void on_reached(const Status& status) noexcept override {
    engine_.submit(make_command([this, status] { event_.happen(status); }));
  }

  Engine& engine_;
  ExternalEvent event_;
};

}  // namespace tersum::runtime
