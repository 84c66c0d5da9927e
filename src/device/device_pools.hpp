// What groups on GPUs leave to those that come after them in a session.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "src/device/peer_links.hpp"
#include "src/device/staging_room.hpp"

namespace tersum::runtime {

/// Things that nobody uses. Any thread.
template <class T>
class Shelf {
 public:
  void put(std::unique_ptr<T> thing) {
    const std::lock_guard lock(mutex_);
    things_.push_back(std::move(thing));
  }

  /// At most `most` of those that suit, in the order in which they came.
  template <class Suits>
  std::vector<std::unique_ptr<T>> take(std::size_t most, const Suits& suits) {
    const std::lock_guard lock(mutex_);
    std::vector<std::unique_ptr<T>> taken;
    for (auto& thing : things_)
      if (taken.size() < most && suits(*thing)) taken.push_back(std::move(thing));
    std::erase(things_, nullptr);
    return taken;
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<T>> things_;
};

/// Freed when all ranks have said good-bye: peers may write into links until then, and to free
/// memory earlier would wait for all that runs on a GPU.
struct DevicePools {
  Shelf<PeerLinks> links;
  Shelf<StagingRoom> rooms;
  std::atomic<std::uint32_t> links_made{0};
};

}  // namespace tersum::runtime
