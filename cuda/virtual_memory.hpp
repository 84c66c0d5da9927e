// Memory that can be had while streams wait.
#pragma once

#include <cstddef>
#include <mutex>
#include <span>
#include <vector>

#include "cuda/buffer.hpp"

namespace tersum::gpu {

enum class Place {
  Device,  ///< the device that is current; peers and networks cannot map it
  Host,    ///< page-locked; this device and the host use it at the same address. UCX with CUDA
           ///< takes it for device memory
};

/// Owns memory from CUDA's virtual memory management, in whole pages of 2 MiB. Making one does not
/// wait for what runs, nor for another thread that waits inside CUDA: one that launches into a full
/// queue, or copies pageable memory behind Work::wait_on(), makes cudaMalloc(), cudaHostAlloc() and
/// the creation of streams and events wait until it goes on, which may need this very memory. Where
/// the driver refuses, it is a DeviceBuffer or a PinnedBuffer. Contents undefined, aligned to 256
/// bytes at least. Size 0 owns nothing. Movable. Whoever destroys one knows that nothing uses it.
class VirtualBuffer {
 public:
  VirtualBuffer() = default;
  /// Error OutOfMemory if there is not that much.
  VirtualBuffer(Place place, std::size_t bytes);
  VirtualBuffer(VirtualBuffer&& other) noexcept;
  VirtualBuffer& operator=(VirtualBuffer&& other) noexcept;
  ~VirtualBuffer();

  std::byte* data() const noexcept { return data_; }
  /// At least what was asked for.
  std::size_t bytes() const noexcept { return bytes_; }
  /// False if the driver has refused, and for none.
  bool is_virtual() const noexcept { return handle_ != 0; }

 private:
  bool map(Place place, std::size_t bytes);

  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
  unsigned long long handle_ = 0;  // 0: one of those below owns it
  DeviceBuffer device_;
  PinnedBuffer pinned_;
};

/// Virtual memory for small things that stay: hands out pieces of a page. Thread-safe.
class PieceAllocator {
 public:
  explicit PieceAllocator(Place place) : place_(place) {}

  /// `bytes`, aligned to 256, for as long as this lives. Error OutOfMemory.
  std::byte* take(std::size_t bytes);

 private:
  const Place place_;
  std::mutex mutex_;
  std::vector<VirtualBuffer> pages_;
  std::span<std::byte> rest_;  // of one of them: not lent yet
};

}  // namespace tersum::gpu
