// Pinned host memory that is lent and comes back.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <vector>

#include "cuda/buffer.hpp"

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

  std::byte* data() const noexcept { return buffer_.data(); }
  /// At least what was asked for.
  std::size_t bytes() const noexcept { return buffer_.bytes(); }

 private:
  friend class PinnedPool;
  PinnedLease(PinnedPool* pool, gpu::PinnedBuffer buffer) noexcept
      : pool_(pool), buffer_(std::move(buffer)) {}

  PinnedPool* pool_ = nullptr;
  gpu::PinnedBuffer buffer_;
};

/// Long-lived pinned buffers in size classes (those of gpu::BufferPool). Pinning blocks the host
/// and takes long (about a millisecond for a few MiB), so that a steady state must not: what comes
/// back is kept. Thread-safe. All leases end before their pool.
class PinnedPool {
 public:
  PinnedPool() = default;
  PinnedPool(const PinnedPool&) = delete;
  PinnedPool& operator=(const PinnedPool&) = delete;

  /// Contents are undefined. Error OutOfMemory.
  PinnedLease acquire(std::size_t bytes);

  /// How often acquire() had to allocate: stays the same in a steady state.
  std::size_t allocations() const;

 private:
  friend class PinnedLease;
  void give_back(gpu::PinnedBuffer buffer) noexcept;

  mutable std::mutex mutex_;
  std::map<std::size_t, std::vector<gpu::PinnedBuffer>> free_;  // by bytes
  std::size_t allocations_ = 0;
};

}  // namespace tersum::runtime
