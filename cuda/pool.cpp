#include "cuda/pool.hpp"

#include <algorithm>
#include <bit>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "cuda/buffer.hpp"
#include "cuda/error.hpp"
#include "cuda/event_pool.hpp"
#include "cuda/virtual_memory.hpp"
#include "tersum/error.hpp"

namespace tersum::gpu {

struct BufferLease::Block {
  std::byte* data = nullptr;
  std::size_t bytes = 0;
  VirtualBuffer own;  // empty: it is a piece of a page
  Event released;
  StreamView last;    // the stream that used it last
  bool fresh = true;  // nothing has used it yet
};

namespace {

constexpr std::size_t kOwnPages = std::size_t{2} << 20;  // from here on a buffer has its own

// Lets this thread query events and allocate while some stream is being captured: neither touches
// that stream.
class RelaxedCapture {
 public:
  RelaxedCapture() { check(cudaThreadExchangeStreamCaptureMode(&mode_), "capture mode"); }
  ~RelaxedCapture() {
    if (cudaThreadExchangeStreamCaptureMode(&mode_) != cudaSuccess) cudaGetLastError();
  }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

}  // namespace

struct BufferPool::State {
  using Block = BufferLease::Block;

  mutable std::mutex mutex;
  int device = 0;
  std::size_t allocations = 0;
  EventPool events;
  PieceAllocator pieces{Place::Device};
  std::vector<std::unique_ptr<Block>> blocks;
  std::map<std::size_t, std::vector<Block*>> free;  // by size class, oldest first

  // Takes the best free block of a class: no wait needed, or else the one that is back for longest.
  Block* take(std::size_t bytes, StreamView stream) {
    const auto found = free.find(bytes);
    if (found == free.end() || found->second.empty()) return nullptr;
    auto& blocks_of_class = found->second;
    auto best = std::find_if(blocks_of_class.begin(), blocks_of_class.end(), [](Block* block) {
      return block->fresh || block->released.is_done();
    });
    if (best == blocks_of_class.end()) {
      if (stream.is_capturing()) return nullptr;
      best = std::find_if(blocks_of_class.begin(), blocks_of_class.end(),
                          [&](Block* block) { return block->last == stream; });
      if (best == blocks_of_class.end()) best = blocks_of_class.begin();
      stream.wait((*best)->released);
    }
    Block* block = *best;
    blocks_of_class.erase(best);
    return block;
  }

  ~State() {
    for (const auto& block : blocks)
      if (!block->fresh) cudaEventSynchronize(block->released.get());
  }

  void drop_idle() {
    for (auto& [bytes, blocks_of_class] : free) {
      std::erase_if(blocks_of_class, [&](Block* block) {
        if (block->own.bytes() == 0 || (!block->fresh && !block->released.is_done())) return false;
        events.give(device, std::move(block->released));
        std::erase_if(blocks, [&](const auto& owned) { return owned.get() == block; });
        return true;
      });
    }
  }

  void find_memory(Block& block) {
    if (block.bytes < kOwnPages) {
      block.data = pieces.take(block.bytes);
    } else {
      block.own = VirtualBuffer(Place::Device, block.bytes);
      block.data = block.own.data();
    }
  }

  Block* allocate(std::size_t bytes) {
    const DeviceGuard guard(device);
    auto block = std::make_unique<Block>(Block{nullptr, bytes, {}, events.take(device), {}, true});
    for (int attempt = 0;; ++attempt) {
      try {
        find_memory(*block);
        break;
      } catch (const Error& error) {
        if (error.code() != Code::OutOfMemory || attempt > 0) throw;
        drop_idle();
      }
    }
    blocks.push_back(std::move(block));
    free[bytes].reserve(blocks.size());  // so that giving back does not allocate
    ++allocations;
    return blocks.back().get();
  }

  void give_back(Block* block, StreamView stream) noexcept {
    const std::lock_guard lock(mutex);
    block->last = stream;
    block->fresh = false;
    // What a captured graph uses stays with the graph, and what has no event is never safe again.
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    if (cudaStreamIsCapturing(stream.get(), &status) != cudaSuccess ||
        status != cudaStreamCaptureStatusNone ||
        cudaEventRecord(block->released.get(), stream.get()) != cudaSuccess) {
      cudaGetLastError();
      return;
    }
    free[block->bytes].push_back(block);
  }
};

BufferLease::BufferLease(BufferLease&& other) noexcept
    : pool_(other.pool_), block_(std::exchange(other.block_, nullptr)), stream_(other.stream_) {}

BufferLease& BufferLease::operator=(BufferLease&& other) noexcept {
  std::swap(pool_, other.pool_);
  std::swap(block_, other.block_);
  std::swap(stream_, other.stream_);
  return *this;
}

BufferLease::~BufferLease() {
  release(stream_);
}

std::byte* BufferLease::data() const noexcept {
  return block_ == nullptr ? nullptr : block_->data;
}

std::size_t BufferLease::bytes() const noexcept {
  return block_ == nullptr ? 0 : block_->bytes;
}

void BufferLease::release(StreamView stream) noexcept {
  if (block_ != nullptr) pool_->state_->give_back(std::exchange(block_, nullptr), stream);
}

BufferPool::BufferPool() : state_(std::make_unique<State>()) {
  check(cudaGetDevice(&state_->device), "cudaGetDevice");
}

BufferPool::~BufferPool() = default;

BufferLease BufferPool::acquire(std::size_t bytes, StreamView stream) {
  const std::size_t rounded = class_bytes(bytes);
  const std::lock_guard lock(state_->mutex);
  const RelaxedCapture relaxed;
  BufferLease::Block* block = state_->take(rounded, stream);
  if (block == nullptr) block = state_->allocate(rounded);
  return BufferLease(this, block, stream);
}

void BufferPool::reserve(std::size_t count) {
  state_->events.reserve(state_->device, count);
}

std::size_t BufferPool::allocations() const {
  const std::lock_guard lock(state_->mutex);
  return state_->allocations;
}

std::size_t BufferPool::class_bytes(std::size_t bytes) noexcept {
  constexpr std::size_t kSmallest = 256;
  if (bytes <= kSmallest) return kSmallest;
  const std::size_t quarter = std::max(kSmallest, std::bit_floor(bytes - 1) / 4);
  return (bytes + quarter - 1) / quarter * quarter;
}

}  // namespace tersum::gpu
