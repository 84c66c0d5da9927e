#include "src/device/pinned_pool.hpp"

#include <new>
#include <utility>

#include "cuda/pool.hpp"

namespace tersum::runtime {

PinnedLease::PinnedLease(PinnedLease&& other) noexcept
    : pool_(std::exchange(other.pool_, nullptr)), buffer_(std::move(other.buffer_)) {}

PinnedLease& PinnedLease::operator=(PinnedLease&& other) noexcept {
  std::swap(pool_, other.pool_);
  std::swap(buffer_, other.buffer_);
  return *this;
}

PinnedLease::~PinnedLease() {
  if (pool_ != nullptr) pool_->give_back(std::move(buffer_));
}

PinnedLease PinnedPool::acquire(std::size_t bytes) {
  const std::size_t size = gpu::BufferPool::class_bytes(bytes);
  {
    const std::lock_guard lock(mutex_);
    auto& buffers = free_[size];
    if (!buffers.empty()) {
      PinnedLease lease(this, std::move(buffers.back()));
      buffers.pop_back();
      return lease;
    }
    ++allocations_;
  }
  return {this, gpu::PinnedBuffer(size)};
}

std::size_t PinnedPool::allocations() const {
  const std::lock_guard lock(mutex_);
  return allocations_;
}

void PinnedPool::give_back(gpu::PinnedBuffer buffer) noexcept {
  const std::lock_guard lock(mutex_);
  try {
    free_[buffer.bytes()].push_back(std::move(buffer));
  } catch (const std::bad_alloc&) {  // no room to remember it: it is freed
  }
}

}  // namespace tersum::runtime
