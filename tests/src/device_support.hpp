// What tests of collectives on device memory share.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdlib>
#include <vector>

#include "cuda/buffer.hpp"
#include "cuda/device.hpp"
#include "cuda/error.hpp"
#include "cuda/stream.hpp"
#include "src/support.hpp"

namespace tersum::test {

/// Several ranks that are threads of this process share GPUs here, and so hardware queues, in which
/// one rank's wait would hold up what it waits for: let there be enough. Before CUDA starts.
inline const bool kManyQueues = ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1) == 0;

/// count floats in device memory, allocated and freed in the order of the stream: cudaFree() would
/// wait for all that runs on the GPU, also for another rank's work that waits for this one's.
class Tensor {
 public:
  Tensor(const std::vector<float>& values, gpu::StreamView stream)
      : stream_(stream), count_(values.size()) {
    void* memory = nullptr;
    gpu::check(cudaMallocAsync(&memory, count_ * sizeof(float), stream.get()), "cudaMallocAsync");
    memory_ = static_cast<float*>(memory);
    gpu::check(cudaMemcpyAsync(data(), values.data(), values.size() * sizeof(float),
                               cudaMemcpyHostToDevice, stream.get()),
               "cudaMemcpyAsync");
  }
  ~Tensor() { cudaFreeAsync(memory_, stream_.get()); }
  Tensor(const Tensor&) = delete;
  Tensor& operator=(const Tensor&) = delete;
  float* data() { return memory_; }
  std::size_t count() const { return count_; }
  std::vector<float> read(gpu::StreamView stream) {
    std::vector<float> values(count_);
    gpu::check(cudaMemcpyAsync(values.data(), data(), count_ * sizeof(float),
                               cudaMemcpyDeviceToHost, stream.get()),
               "cudaMemcpyAsync");
    stream.synchronize();
    return values;
  }

 private:
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
  each_rank(static_cast<int>(world.size()), [&](int rank) {
    gpu::check(cudaSetDevice(rank % gpus), "cudaSetDevice");
    const gpu::Stream stream;
    function(rank, world[static_cast<std::size_t>(rank)], stream.view());
    stream.synchronize();
  });
}

}  // namespace tersum::test
