// Reusable host memory for operations: blocks by power of two, kept for the next operation up to a
// limit.
#pragma once

#include <array>
#include <cstddef>
#include <mutex>
#include <span>
#include <vector>

namespace tersum::runtime {

/// A cache of 64-byte aligned blocks. Thread-safe. The steady state of a training loop allocates
/// nothing.
class ScratchCache {
 public:
  explicit ScratchCache(std::size_t keep_bytes = std::size_t{512} << 20)
      : keep_bytes_(keep_bytes) {}
  ~ScratchCache();
  ScratchCache(const ScratchCache&) = delete;
  ScratchCache& operator=(const ScratchCache&) = delete;

  /// At least `bytes`; contents undefined. Throws Error OutOfMemory.
  std::span<std::byte> take(std::size_t bytes);
  void give_back(std::span<std::byte> block) noexcept;

 private:
  static constexpr int kClasses = 48;
  std::mutex mutex_;
  std::array<std::vector<std::byte*>, kClasses> free_;
  std::size_t kept_bytes_ = 0;
  const std::size_t keep_bytes_;
};

/// Blocks that belong to one operation and go back together.
class ScratchArena {
 public:
  explicit ScratchArena(ScratchCache& cache) : cache_(cache) {}
  ~ScratchArena() { release(); }
  ScratchArena(const ScratchArena&) = delete;
  ScratchArena& operator=(const ScratchArena&) = delete;

  /// Exactly `bytes` of a block; lives until release().
  std::span<std::byte> take(std::size_t bytes) {
    if (bytes == 0) return {};
    blocks_.push_back(cache_.take(bytes));
    return blocks_.back().first(bytes);
  }
  void release() noexcept {
    for (auto block : blocks_) cache_.give_back(block);
    blocks_.clear();
  }

 private:
  ScratchCache& cache_;
  std::vector<std::span<std::byte>> blocks_;
};

}  // namespace tersum::runtime
