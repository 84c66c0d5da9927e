// Pinned host memory that is lent and comes back.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <vector>

#include "cuda/virtual_memory.hpp"

namespace tersum::runtime {

class PinnedPool;

/// Pinned memory on loan; goes back to its pool when destroyed. No copy to or from it may be
/// running then. Movable; a moved-from lease holds nothing. Must not outlive its pool.
class PinnedLease {
 public:
  PinnedLease() = default;
  PinnedLease(PinnedLease&& other) noexcept;
  PinnedLease& operator=(PinnedLease&& other) noexcept;
  ~PinnedLease();

  std::byte* data() const noexcept { return data_; }
  /// At least what was asked for.
  std::size_t bytes() const noexcept { return bytes_; }

 private:
  friend class PinnedPool;
  PinnedLease(PinnedPool* pool, std::byte* data, std::size_t bytes) noexcept
      : pool_(pool), data_(data), bytes_(bytes) {}

  PinnedPool* pool_ = nullptr;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

/// Long-lived pinned buffers in size classes (those of gpu::BufferPool), for the host and one
/// device. Pinning takes long (a millisecond for each MiB), so that a steady state must not: what
/// comes back is kept. It does not wait for streams (gpu::VirtualBuffer). Thread-safe. All leases
/// end before their pool.
class PinnedPool {
 public:
  PinnedPool() = default;
  PinnedPool(const PinnedPool&) = delete;
  PinnedPool& operator=(const PinnedPool&) = delete;

  /// For the device that is current. Contents are undefined. Error OutOfMemory.
  PinnedLease acquire(std::size_t bytes);

  /// How often acquire() had to allocate: stays the same in a steady state.
  std::size_t allocations() const;

 private:
  friend class PinnedLease;
  void give_back(std::byte* data, std::size_t bytes) noexcept;

  mutable std::mutex mutex_;
  std::map<std::size_t, std::vector<std::byte*>> free_;  // by bytes
  std::size_t allocations_ = 0;
  gpu::PieceAllocator memory_{gpu::Place::Host};
};

}  // namespace tersum::runtime
