#include "cuda/buffer.hpp"

#include <cuda_runtime_api.h>

#include <cstring>
#include <utility>

#include "cuda/error.hpp"

namespace tersum::gpu {

DeviceBuffer::DeviceBuffer(std::size_t bytes) : bytes_(bytes) {
  if (bytes == 0) return;
  check(cudaGetDevice(&device_), "cudaGetDevice");
  void* data = nullptr;
  check(cudaMalloc(&data, bytes), "cudaMalloc");
  data_ = static_cast<std::byte*>(data);
}

DeviceBuffer::DeviceBuffer(DeviceBuffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      device_(std::exchange(other.device_, -1)) {}

DeviceBuffer& DeviceBuffer::operator=(DeviceBuffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(device_, other.device_);
  return *this;
}

DeviceBuffer::~DeviceBuffer() {
  if (data_ != nullptr && cudaFree(data_) != cudaSuccess) cudaGetLastError();
}

PinnedBuffer::PinnedBuffer(std::size_t bytes) : bytes_(bytes) {
  if (bytes == 0) return;
  void* data = nullptr;
  check(cudaHostAlloc(&data, bytes, cudaHostAllocPortable | cudaHostAllocMapped), "cudaHostAlloc");
  std::memset(data, 0, bytes);
  data_ = static_cast<std::byte*>(data);
}

PinnedBuffer::PinnedBuffer(PinnedBuffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

PinnedBuffer& PinnedBuffer::operator=(PinnedBuffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

PinnedBuffer::~PinnedBuffer() {
  if (data_ != nullptr && cudaFreeHost(data_) != cudaSuccess) cudaGetLastError();
}

int current_device() {
  int device = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  return device;
}

DeviceGuard::DeviceGuard(int device) {
  check(cudaGetDevice(&former_), "cudaGetDevice");
  if (device == former_) {
    former_ = -1;
    return;
  }
  check(cudaSetDevice(device), "cudaSetDevice");
}

DeviceGuard::~DeviceGuard() {
  if (former_ >= 0 && cudaSetDevice(former_) != cudaSuccess) cudaGetLastError();
}

}  // namespace tersum::gpu
