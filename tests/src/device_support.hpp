// What tests of collectives on device memory share.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <thread>
#include <vector>

#include "cuda/buffer.hpp"
#include "cuda/device.hpp"
#include "cuda/error.hpp"
#include "cuda/stream.hpp"
#include "src/device_queues.hpp"
#include "src/support.hpp"

namespace tersum::test {

/// Pinned memory of this thread, through which tensors go: copies from and to other host memory
/// block inside CUDA, where another rank's thread may need to go. Made before anything waits.
inline gpu::PinnedBuffer& staging() {
  static thread_local gpu::PinnedBuffer buffer;
  return buffer;
}
inline constexpr std::size_t kStagingBytes = std::size_t{64} << 20;

/// count floats in device memory, allocated and freed in the order of the stream: cudaFree() would
/// wait for all that runs on the GPU, also for another rank's work that waits for this one's.
class Tensor {
 public:
  Tensor(const std::vector<float>& values, gpu::StreamView stream)
      : stream_(stream), count_(values.size()) {
    void* memory = nullptr;
    gpu::check(cudaMallocAsync(&memory, std::max<std::size_t>(1, bytes()), stream.get()),
               "cudaMallocAsync");
    memory_ = static_cast<float*>(memory);
    std::memcpy(pinned(), values.data(), bytes());
    copy(memory_, pinned());
  }
  ~Tensor() { cudaFreeAsync(memory_, stream_.get()); }
  Tensor(const Tensor&) = delete;
  Tensor& operator=(const Tensor&) = delete;
  float* data() { return memory_; }
  std::size_t count() const { return count_; }
  std::vector<float> read(gpu::StreamView stream) {
    EXPECT_EQ(stream, stream_);
    copy(pinned(), memory_);
    return {pinned(), pinned() + count_};
  }

 private:
  std::size_t bytes() const { return count_ * sizeof(float); }
  float* pinned() const {
    if (staging().bytes() < bytes())
      staging() = gpu::PinnedBuffer(std::max(bytes(), kStagingBytes));
    return staging().as<float>();
  }
  void copy(void* to, const void* from) {
    gpu::check(cudaMemcpyAsync(to, from, bytes(), cudaMemcpyDefault, stream_.get()),
               "cudaMemcpyAsync");
    stream_.synchronize();
  }

  gpu::StreamView stream_;
  float* memory_ = nullptr;
  std::size_t count_;
};

inline std::vector<float> values_of(int rank, std::size_t count) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i)
    values[i] = static_cast<float>((i * 7 + static_cast<std::size_t>(rank) * 13) % 101);
  return values;
}

inline std::vector<float> sum_of(int ranks, std::size_t count) {
  std::vector<float> sum(count);
  for (int rank = 0; rank < ranks; ++rank) {
    const auto values = values_of(rank, count);
    for (std::size_t i = 0; i < count; ++i) sum[i] += values[i];
  }
  return sum;
}

/// Calls function(rank, communicator, stream) for every rank, in a thread of its own, on GPU
/// rank % GPUs.
template <class Function>
void on_each_gpu(World& world, const Function& function) {
  const int gpus = static_cast<int>(gpu::devices().size());
  static std::vector<gpu::PinnedBuffer> buffers;  // by rank
  while (buffers.size() < world.size()) buffers.emplace_back(kStagingBytes);
  each_rank(static_cast<int>(world.size()), [&](int rank) {
    const auto index = static_cast<std::size_t>(rank);
    gpu::check(cudaSetDevice(rank % gpus), "cudaSetDevice");
    const gpu::Stream stream;
    std::swap(staging(), buffers[index]);
    function(rank, world[index], stream.view());
    stream.synchronize();
    std::swap(staging(), buffers[index]);
  });
}

/// A callback comes though nobody waits for the work.
inline void check_callback(int rank, Communicator& communicator, gpu::StreamView stream) {
  Tensor tensor(values_of(rank, 1000), stream);
  std::atomic<int> ended{0};
  communicator
      .all_reduce(tensor.data(), tensor.data(), 1000, DType::Float32, ReduceOp::Average,
                  {.stream = stream})
      .on_complete([&](const Status& status) { ended = status.is_ok() ? 1 : -1; });
  const auto begin = std::chrono::steady_clock::now();
  while (ended == 0 && std::chrono::steady_clock::now() - begin < kHang) std::this_thread::yield();
  EXPECT_EQ(ended, 1);
}

}  // namespace tersum::test
