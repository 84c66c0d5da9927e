#include "perf/buffers.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

namespace tersum::perf {
namespace {

constexpr std::size_t kAlignment = 64;
constexpr std::size_t kPageBytes = 4096;

std::size_t rounded_up(std::size_t bytes, std::size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

std::size_t stride_of(std::size_t bytes) {
  return rounded_up(bytes + kAlignment, kAlignment) + 2 * kGuardBytes;
}

}  // namespace

void BufferRing::Free::operator()(std::byte* memory) const noexcept {
  std::free(memory);
}

BufferRing::BufferRing(std::size_t largest_bytes)
    : total_bytes_(2 * stride_of(largest_bytes)), stride_bytes_(stride_of(largest_bytes)) {
  const std::size_t bytes = rounded_up(total_bytes_, kPageBytes);
  memory_.reset(static_cast<std::byte*>(std::aligned_alloc(kPageBytes, bytes)));
  if (!memory_) throw std::bad_alloc();
  std::memset(memory_.get(), 0, bytes);
}

void BufferRing::set_size(std::size_t bytes) noexcept {
  stride_bytes_ = stride_of(bytes);
}

std::byte* BufferRing::slot(std::size_t turn) noexcept {
  return memory_.get() + turn % slots() * stride_bytes_ + kGuardBytes;
}

GuardedBuffer::GuardedBuffer(BufferRing& ring, std::size_t bytes, std::size_t shift_bytes)
    : begin_(ring.first()),
      data_(ring.first() + kGuardBytes + shift_bytes),
      bytes_(bytes),
      end_(ring.first() + ring.stride_bytes()) {
  std::memset(begin_, static_cast<int>(kPoison), static_cast<std::size_t>(end_ - begin_));
}

std::size_t GuardedBuffer::broken_guards() const noexcept {
  const std::byte* after = data_ + bytes_;
  return not_poison(begin_, static_cast<std::size_t>(data_ - begin_)) +
         not_poison(after, static_cast<std::size_t>(end_ - after));
}

std::size_t not_poison(const std::byte* bytes, std::size_t count) noexcept {
  return count - static_cast<std::size_t>(std::count(bytes, bytes + count, kPoison));
}

}  // namespace tersum::perf
