// Events that are used again.
#pragma once

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <map>
#include <mutex>
#include <vector>

#include "cuda/buffer.hpp"
#include "cuda/event.hpp"

namespace tersum::gpu {

/// Lends events (without timing) of any device. Making one takes microseconds, and waits for other
/// threads that wait inside CUDA (see VirtualBuffer); a steady state makes none. Thread-safe.
class EventPool {
 public:
  /// So many are there at once, without making one, from now on.
  void reserve(int device, std::size_t count) {
    const DeviceGuard guard(device);
    std::vector<Event> made;  // without the lock: it may take long
    {
      const std::lock_guard lock(mutex_);
      count -= std::min(count, free_[device].size());
    }
    while (made.size() < count) made.emplace_back();
    const std::lock_guard lock(mutex_);
    auto& events = free_[device];
    std::move(made.begin(), made.end(), std::back_inserter(events));
  }

  Event take(int device) {
    {
      const std::lock_guard lock(mutex_);
      auto& events = free_[device];
      if (!events.empty()) {
        Event event = std::move(events.back());
        events.pop_back();
        return event;
      }
    }
    const DeviceGuard guard(device);
    return Event();
  }
  /// Takes an event of `device` back. Nobody asks it any more.
  void give(int device, Event event) {
    const std::lock_guard lock(mutex_);
    free_[device].push_back(std::move(event));
  }

 private:
  std::mutex mutex_;
  std::map<int, std::vector<Event>> free_;
};

}  // namespace tersum::gpu
