// Device buffers that are lent and come back, without allocating in a steady state.
#pragma once

#include <cstddef>
#include <memory>

#include "cuda/stream.hpp"

namespace tersum::gpu {

class BufferPool;

/// A device buffer on loan; goes back to its pool when destroyed. Movable; a moved-from lease holds
/// nothing. Must not outlive its pool.
class BufferLease {
 public:
  BufferLease() = default;
  BufferLease(BufferLease&& other) noexcept;
  BufferLease& operator=(BufferLease&& other) noexcept;
  ~BufferLease();

  std::byte* data() const noexcept;
  /// At least what was asked for.
  std::size_t bytes() const noexcept;
  template <typename T>
  T* as() const noexcept {
    return reinterpret_cast<T*>(data());
  }
  /// Gives the buffer back after the work that is in `stream` now, which was the last to use it.
  /// Without this call it goes back after the work of the stream that acquire() was given.
  void release(StreamView stream) noexcept;

 private:
  friend class BufferPool;
  struct Block;
  BufferLease(BufferPool* pool, Block* block, StreamView stream) noexcept
      : pool_(pool), block_(block), stream_(stream) {}

  BufferPool* pool_ = nullptr;
  Block* block_ = nullptr;
  StreamView stream_;
};

/// Long-lived device buffers of one device in size classes, four per power of two, at most a
/// quarter larger than asked for, and 256-byte aligned. They are virtual memory, which can be had
/// while streams wait for what it is needed for (VirtualBuffer); peers cannot map it.
///
/// Reuse is ordered by streams: a buffer that comes back carries an event, and who gets it next has
/// this event put before its own work, without blocking the host. A buffer whose event has passed
/// is preferred, then one that the same stream used. Only when no buffer of a class is free a new
/// one is allocated. All calls are thread-safe.
///
/// While a stream is captured into a graph only idle buffers are given out, and what goes back
/// then stays with the graph: it is not lent again before the pool ends.
class BufferPool {
 public:
  /// For the device that is current now.
  BufferPool();
  BufferPool(const BufferPool&) = delete;
  BufferPool& operator=(const BufferPool&) = delete;
  /// All leases are over. Frees everything; waits for work that uses it.
  ~BufferPool();

  /// The first `count` buffers need no event to be made, which may wait for others (EventPool).
  void reserve(std::size_t count);

  /// A buffer of at least `bytes` for work in `stream`. Error OutOfMemory if a new one is needed
  /// and the device has not that much, even when what is idle is freed.
  BufferLease acquire(std::size_t bytes, StreamView stream);

  /// How often acquire() had to allocate: stays the same in a steady state.
  std::size_t allocations() const;

  /// The size class of a request: the bytes that a buffer for it really has.
  static std::size_t class_bytes(std::size_t bytes) noexcept;

 private:
  friend class BufferLease;
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tersum::gpu
