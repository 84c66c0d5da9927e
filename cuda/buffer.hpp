// Memory with an owner: on a device, and pinned on the host.
#pragma once

#include <cstddef>
#include <span>

#include "tersum/types.hpp"

namespace tersum::gpu {

/// Owns device memory from cudaMalloc (so that it can be mapped by peers), on the device that is
/// current when it is made; 256-byte aligned, contents undefined. Size 0 owns nothing. Movable.
/// Making and destroying one blocks the host: long-lived only, see BufferPool for the others.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  /// Error OutOfMemory if the device has not that much.
  explicit DeviceBuffer(std::size_t bytes);
  DeviceBuffer(DeviceBuffer&& other) noexcept;
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept;
  ~DeviceBuffer();

  std::byte* data() const noexcept { return data_; }
  std::size_t bytes() const noexcept { return bytes_; }
  /// Device index of the memory; -1 if there is none.
  int device() const noexcept { return device_; }
  /// The memory as an array of T, which holds bytes() / sizeof(T).
  template <typename T>
  T* as() const noexcept {
    return reinterpret_cast<T*>(data_);
  }
  operator Buffer() const noexcept { return {data_, bytes_, MemoryType::Cuda, nullptr}; }

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
  int device_ = -1;
};

/// Owns page-locked host memory that every device of the process can read and write at the same
/// address. Zero at first. Movable. Making and destroying one blocks the host.
class PinnedBuffer {
 public:
  PinnedBuffer() = default;
  explicit PinnedBuffer(std::size_t bytes);
  PinnedBuffer(PinnedBuffer&& other) noexcept;
  PinnedBuffer& operator=(PinnedBuffer&& other) noexcept;
  ~PinnedBuffer();

  std::byte* data() const noexcept { return data_; }
  std::size_t bytes() const noexcept { return bytes_; }
  std::span<std::byte> span() const noexcept { return {data_, bytes_}; }
  template <typename T>
  T* as() const noexcept {
    return reinterpret_cast<T*>(data_);
  }
  operator Buffer() const noexcept { return {data_, bytes_, MemoryType::Host, nullptr}; }

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

/// The device that is current in this thread.
int current_device();

/// Makes `device` the current one of this thread, and the former one again at the end of its scope.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device);
  ~DeviceGuard();
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int former_ = -1;
};

}  // namespace tersum::gpu
