// Pinned host memory that is lent and comes back.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <span>
#include <vector>

#include "cuda/buffer.hpp"
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
/// comes back is kept. What is reserved is plain page-locked memory, which every network can
/// register; what is needed beyond that is virtual memory, which does not wait for streams
/// (gpu::VirtualBuffer). Thread-safe. All leases end before their pool.
class PinnedPool {
 public:
  PinnedPool() = default;
  PinnedPool(const PinnedPool&) = delete;
  PinnedPool& operator=(const PinnedPool&) = delete;

  /// So many buffers of these sizes are there, beside those that there are, from now on. Error
  /// OutOfMemory.
  void reserve(std::span<const std::size_t> sizes);

  /// For the device that is current. Contents are undefined. 0 bytes: an empty lease. Error
  /// OutOfMemory.
  PinnedLease acquire(std::size_t bytes);

  /// How often acquire() had to allocate: stays the same in a steady state.
  std::size_t allocations() const;

 private:
  friend class PinnedLease;
  void give_back(std::byte* data, std::size_t bytes) noexcept;

  mutable std::mutex mutex_;
  std::map<std::size_t, std::vector<std::byte*>> free_;  // by bytes
  std::size_t allocations_ = 0;
  std::vector<gpu::PinnedBuffer> reserved_;
  gpu::PieceAllocator more_{gpu::Place::Host};
};

}  // namespace tersum::runtime
