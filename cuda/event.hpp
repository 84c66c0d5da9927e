// Events: points in the work of a stream.
#pragma once

#include <cuda_runtime_api.h>

#include "cuda/stream.hpp"

namespace tersum::gpu {

/// Owns an event of the device that is current when it is made. Movable; a moved-from event owns
/// nothing.
class Event {
 public:
  enum class Timing { Off, On };

  /// With Timing::On the event can measure, and costs a little more.
  explicit Event(Timing timing = Timing::Off);
  Event(Event&& other) noexcept;
  Event& operator=(Event&& other) noexcept;
  ~Event();

  cudaEvent_t get() const noexcept { return event_; }

  /// Marks the end of all work that is in `stream` now; a later record() takes the place of it.
  /// Does not block.
  void record(StreamView stream) const;
  /// True if the marked work is done, or nothing was ever marked. Does not block.
  bool is_done() const;
  /// Blocks the host until the marked work is done. Not for hot paths.
  void synchronize() const;
  /// Milliseconds from `start` to this event; both have Timing::On and are done.
  float milliseconds_since(const Event& start) const;

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace tersum::gpu
