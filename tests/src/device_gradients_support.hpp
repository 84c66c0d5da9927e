// What tests of gradients in device memory share.
#pragma once

#include <cuda_runtime_api.h>

#include <vector>

#include "cuda/buffer.hpp"
#include "cuda/device.hpp"
#include "cuda/error.hpp"
#include "cuda/stream.hpp"
#include "src/device_queues.hpp"
#include "src/exchange_support.hpp"

namespace tersum::test {

inline Model on_device(Model model) {
  for (Gradient& gradient : model) gradient.memory = MemoryType::Cuda;
  return model;
}

inline int gpus() {
  static const int count = static_cast<int>(gpu::devices().size());
  return count;
}

/// One rank's tensors on its GPU.
class DeviceTensors {
 public:
  explicit DeviceTensors(const Model& model) : model_(model) {
    for (const Gradient& gradient : model)
      memory_.emplace_back(gradient.count * element_bytes(gradient.dtype));
  }
  void* operator[](std::size_t g) const { return memory_[g].data(); }
  void write(const Tensors& tensors, gpu::StreamView stream) const {
    for (std::size_t g = 0; g < memory_.size(); ++g) write(g, tensors[g], stream);
  }
  void write(std::size_t g, const Bytes& tensor, gpu::StreamView stream) const {
    if (model_[g].count > 0)
      gpu::check(cudaMemcpyAsync(memory_[g].data(), tensor.data(), tensor.size(),
                                 cudaMemcpyHostToDevice, stream.get()),
                 "cudaMemcpyAsync");
  }
  Tensors read(gpu::StreamView stream) const {
    Tensors tensors;
    for (std::size_t g = 0; g < memory_.size(); ++g) {
      tensors.emplace_back(model_[g].count * element_bytes(model_[g].dtype));
      if (model_[g].count > 0)
        gpu::check(cudaMemcpyAsync(tensors[g].data(), memory_[g].data(), tensors[g].size(),
                                   cudaMemcpyDeviceToHost, stream.get()),
                   "cudaMemcpyAsync");
    }
    stream.synchronize();
    return tensors;
  }

 private:
  const Model& model_;
  std::vector<gpu::DeviceBuffer> memory_;
};

/// One rank's results of some steps, with gradients on the device that is current; submitted behind
/// their copies, without waiting for these.
inline std::vector<Tensors> train_on_device(Communicator& communicator, const Model& model,
                                            const ExchangeOptions& options, std::uint64_t steps) {
  const gpu::Stream stream;
  const DeviceTensors tensors(model);
  GradientExchange exchange(communicator, model, options);
  std::vector<Tensors> results;
  for (std::uint64_t step = 0; step < steps; ++step) {
    const Tensors inputs = gradients_of(model, communicator.rank(), step);
    for (std::size_t g : backward_order(model)) {
      tensors.write(g, inputs[g], stream);
      exchange.submit(g, tensors[g], stream.view());
    }
    exchange.wait_all();
    exchange.commit();
    results.push_back(tensors.read(stream));
  }
  return results;
}

/// As train(), each rank as train_on_device().
inline std::vector<std::vector<Tensors>> train_on_devices(World& world, const Model& model,
                                                          const ExchangeOptions& options,
                                                          std::uint64_t steps) {
  std::vector<std::vector<Tensors>> results(world.size());
  each_rank(static_cast<int>(world.size()), [&](int rank) {
    const auto r = static_cast<std::size_t>(rank);
    gpu::check(cudaSetDevice(rank % gpus()), "cudaSetDevice");
    results[r] = train_on_device(world[r], model, options, steps);
  });
  return results;
}

}  // namespace tersum::test
