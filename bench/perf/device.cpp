#include "perf/device.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>

#include "cuda/buffer.hpp"
#include "cuda/device.hpp"
#include "cuda/error.hpp"
#include "cuda/event.hpp"
#include "cuda/stream.hpp"

namespace tersum::perf {
namespace {

constexpr int kBatches = 7;

struct Image {
  std::byte* host;
  std::size_t bytes;
  gpu::DeviceBuffer device;

  explicit Image(BufferRing& ring)
      : host(ring.first()), bytes(ring.total_bytes()), device(ring.total_bytes()) {}
};

class CudaMemory final : public DeviceMemory {
 public:
  CudaMemory(BufferRing& inputs, BufferRing& outputs) : images_{Image(inputs), Image(outputs)} {}

  tersum::Stream stream() const override { return stream_.view(); }
  void* image(const void* host) const override {
    const auto* address = static_cast<const std::byte*>(host);
    for (const Image& image : images_)
      if (address >= image.host && address <= image.host + image.bytes)
        return image.device.as<std::byte>() + (address - image.host);
    throw Error(Code::Internal, "an address beyond the rings has no image");
  }
  void upload() override { copy_images(cudaMemcpyHostToDevice); }
  void download() override { copy_images(cudaMemcpyDeviceToHost); }
  void copy(void* to, const void* from, std::size_t bytes) override {
    gpu::check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream_.get()),
               "cudaMemcpyAsync");
    stream_.synchronize();
  }
  Timing time(Communicator& communicator, int warmup, int iterations, bool graph,
              const std::function<void(int)>& call) override;

 private:
  void copy_images(cudaMemcpyKind kind) {
    for (Image& image : images_) {
      void* device = image.device.as<std::byte>();
      const bool up = kind == cudaMemcpyHostToDevice;
      gpu::check(cudaMemcpyAsync(up ? device : image.host, up ? image.host : device, image.bytes,
                                 kind, stream_.get()),
                 "cudaMemcpyAsync");
    }
    stream_.synchronize();
  }

  gpu::Stream stream_;
  std::array<Image, 2> images_;
};

Timing CudaMemory::time(Communicator& communicator, int warmup, int iterations, bool graph,
                        const std::function<void(int)>& call) {
  for (int i = 0; i < std::max(warmup, 1); ++i) call(i);
  stream_.synchronize();
  cudaGraph_t captured = nullptr;
  cudaGraphExec_t replay = nullptr;
  if (graph) {
    gpu::check(cudaStreamBeginCapture(stream_.get(), cudaStreamCaptureModeThreadLocal),
               "cudaStreamBeginCapture");
    for (int i = 0; i < iterations; ++i) call(i);
    gpu::check(cudaStreamEndCapture(stream_.get(), &captured), "cudaStreamEndCapture");
    gpu::check(cudaGraphInstantiate(&replay, captured, 0), "cudaGraphInstantiate");
  }
  const auto batch = [&] {
    if (graph) return gpu::check(cudaGraphLaunch(replay, stream_.get()), "cudaGraphLaunch");
    for (int i = 0; i < iterations; ++i) call(i);
  };
  std::array<double, kBatches> times{};
  const gpu::Event begin(gpu::Event::Timing::On), end(gpu::Event::Timing::On);
  batch();
  for (double& time : times) {
    stream_.synchronize();
    communicator.barrier().wait();
    begin.record(stream_);
    batch();
    end.record(stream_);
    end.synchronize();
    time = 1e3 * static_cast<double>(end.milliseconds_since(begin)) / iterations;
  }
  if (graph) {
    cudaGraphExecDestroy(replay);
    cudaGraphDestroy(captured);
  }
  communicator.all_reduce(times.data(), times.data(), times.size(), DType::Float64, ReduceOp::Max)
      .wait();
  std::sort(times.begin(), times.end());
  return {times[kBatches / 2], times.front(), times.back()};
}

}  // namespace

std::unique_ptr<DeviceMemory> DeviceMemory::make(int rank, BufferRing& inputs,
                                                 BufferRing& outputs) {
  const int devices = static_cast<int>(gpu::devices().size());
  if (devices == 0) throw Error(Code::Unsupported, "--device cuda: there is no GPU here");
  gpu::check(cudaSetDevice(rank % devices), "cudaSetDevice");
  return std::make_unique<CudaMemory>(inputs, outputs);
}

std::string device_name() {
  const auto devices = gpu::devices();
  if (devices.empty()) return "none";
  return devices.front().name + ", driver for CUDA " + gpu::driver_version();
}

}  // namespace tersum::perf
