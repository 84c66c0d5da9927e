#include "src/device/pinned_pool.hpp"

#include <new>
#include <utility>

#include "cuda/pool.hpp"

namespace tersum::runtime {

PinnedLease::PinnedLease(PinnedLease&& other) noexcept {
  *this = std::move(other);
}

PinnedLease& PinnedLease::operator=(PinnedLease&& other) noexcept {
  std::swap(pool_, other.pool_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

PinnedLease::~PinnedLease() {
  if (pool_ != nullptr) pool_->give_back(data_, bytes_);
}

void PinnedPool::reserve(std::span<const std::size_t> sizes) {
  std::size_t all = 0;
  for (const std::size_t bytes : sizes) all += gpu::BufferPool::class_bytes(bytes);
  gpu::PinnedBuffer memory(all);
  const std::lock_guard lock(mutex_);
  reserved_.push_back(std::move(memory));
  std::byte* next = reserved_.back().data();
  for (const std::size_t bytes : sizes) {
    const std::size_t size = gpu::BufferPool::class_bytes(bytes);
    free_[size].push_back(std::exchange(next, next + size));
  }
}

PinnedLease PinnedPool::acquire(std::size_t bytes) {
  if (bytes == 0) return {};
  const std::size_t size = gpu::BufferPool::class_bytes(bytes);
  {
    const std::lock_guard lock(mutex_);
    auto& buffers = free_[size];
    if (!buffers.empty()) {
      PinnedLease lease(this, buffers.back(), size);
      buffers.pop_back();
      return lease;
    }
    ++allocations_;
  }
  return {this, more_.take(size), size};
}

std::size_t PinnedPool::allocations() const {
  const std::lock_guard lock(mutex_);
  return allocations_;
}

void PinnedPool::give_back(std::byte* data, std::size_t bytes) noexcept {
  const std::lock_guard lock(mutex_);
  try {
    free_[bytes].push_back(data);
  } catch (const std::bad_alloc&) {  // no room to remember it: it is free at the pool's end
  }
}

}  // namespace tersum::runtime
