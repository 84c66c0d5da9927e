// Memory for measuring: many slots in turn, so that one call's data is not what the last one left
// in the caches; and guard bytes around a buffer that is checked.
#pragma once

#include <cstddef>
#include <memory>

namespace tersum::perf {

/// Guard bytes on each side of a buffer.
inline constexpr std::size_t kGuardBytes = 256;
inline constexpr std::byte kPoison{0xa5};

/// One allocation, big enough for two buffers of the largest size, cut into as many slots as the
/// current size allows. All of it is touched when it is made.
class BufferRing {
 public:
  explicit BufferRing(std::size_t largest_bytes);

  /// Cuts anew for buffers of `bytes` (at most the largest).
  void set_size(std::size_t bytes) noexcept;
  std::size_t slots() const noexcept { return total_bytes_ / stride_bytes_; }

  /// Buffer of the i-th turn, aligned to 64 bytes.
  std::byte* slot(std::size_t turn) noexcept;

  /// Everything of the first slot, guards included.
  std::byte* first() noexcept { return memory_.get(); }
  std::size_t stride_bytes() const noexcept { return stride_bytes_; }
  std::size_t total_bytes() const noexcept { return total_bytes_; }

 private:
  struct Free {
    void operator()(std::byte* memory) const noexcept;
  };

  std::size_t total_bytes_;
  std::size_t stride_bytes_;
  std::unique_ptr<std::byte, Free> memory_;
};

/// The first slot of a ring as a buffer of exactly `bytes`, `shift_bytes` beyond its usual
/// alignment, with poison in it and all around it.
class GuardedBuffer {
 public:
  /// shift_bytes: at most 64.
  GuardedBuffer(BufferRing& ring, std::size_t bytes, std::size_t shift_bytes);

  std::byte* data() noexcept { return data_; }
  /// Bytes outside the buffer that have been written.
  std::size_t broken_guards() const noexcept;

 private:
  std::byte* begin_;
  std::byte* data_;
  std::size_t bytes_;
  std::byte* end_;
};

/// How many of bytes[count] are not poison.
std::size_t not_poison(const std::byte* bytes, std::size_t count) noexcept;

}  // namespace tersum::perf
