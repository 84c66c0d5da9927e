#include "src/engine/scratch.hpp"

#include <bit>
#include <cstdlib>
#include <new>
#include <string>

#include "tersum/error.hpp"

namespace tersum::runtime {
namespace {

constexpr std::size_t kSmallest = 256;

int class_of(std::size_t bytes) {
  return static_cast<int>(std::bit_width((bytes < kSmallest ? kSmallest : bytes) - 1));
}

}  // namespace

ScratchCache::~ScratchCache() {
  for (auto& blocks : free_)
    for (std::byte* block : blocks) std::free(block);
}

std::span<std::byte> ScratchCache::take(std::size_t bytes) {
  const int size_class = class_of(bytes);
  if (size_class >= kClasses)
    throw Error(Code::OutOfMemory,
                "scratch of " + std::to_string(bytes) + " bytes is beyond any machine");
  const std::size_t capacity = std::size_t{1} << size_class;
  {
    std::lock_guard lock(mutex_);
    auto& blocks = free_[static_cast<std::size_t>(size_class)];
    if (!blocks.empty()) {
      std::byte* block = blocks.back();
      blocks.pop_back();
      kept_bytes_ -= capacity;
      return {block, capacity};
    }
  }
  auto* block = static_cast<std::byte*>(std::aligned_alloc(64, capacity));
  if (block == nullptr)
    throw Error(Code::OutOfMemory,
                "cannot allocate " + std::to_string(capacity) + " bytes of scratch memory");
  return {block, capacity};
}

void ScratchCache::give_back(std::span<std::byte> block) noexcept {
  if (block.empty()) return;
  {
    std::lock_guard lock(mutex_);
    if (kept_bytes_ + block.size() <= keep_bytes_) {
      try {
        free_[static_cast<std::size_t>(class_of(block.size()))].push_back(block.data());
        kept_bytes_ += block.size();
        return;
      } catch (const std::bad_alloc&) {  // no room to remember it: free it below
      }
    }
  }
  std::free(block.data());
}

}  // namespace tersum::runtime
