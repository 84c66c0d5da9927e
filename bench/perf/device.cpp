#include "perf/device.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <deque>

#include "cuda/buffer.hpp"
#include "cuda/device.hpp"
#include "cuda/error.hpp"
#include "cuda/event.hpp"
#include "cuda/stream.hpp"

namespace tersum::perf {
namespace {

constexpr int kBatches = 7;

struct Image {
  BufferRing& ring;
  gpu::DeviceBuffer device;

  explicit Image(BufferRing& of) : ring(of), device(of.total_bytes()) {}
};

/// Calls that follow each other in a stream, once or many times.
class Batch {
 public:
  Batch(gpu::StreamView stream, int calls, bool graph, const DeviceMemory::Enqueue& call)
      : stream_(stream), calls_(calls), call_(call) {
    if (!graph) return;
    gpu::check(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal),
               "cudaStreamBeginCapture");
    enqueue();
    gpu::check(cudaStreamEndCapture(stream.get(), &captured_), "cudaStreamEndCapture");
    gpu::check(cudaGraphInstantiate(&replay_, captured_, 0), "cudaGraphInstantiate");
  }
  ~Batch() {
    if (replay_ != nullptr) cudaGraphExecDestroy(replay_);
    if (captured_ != nullptr) cudaGraphDestroy(captured_);
  }
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;

  void launch() const {
    if (replay_ == nullptr) return enqueue();
    gpu::check(cudaGraphLaunch(replay_, stream_.get()), "cudaGraphLaunch");
  }

 private:
  void enqueue() const {
    for (int i = 0; i < calls_; ++i) call_(i);
  }

  gpu::StreamView stream_;
  int calls_;
  const DeviceMemory::Enqueue& call_;
  cudaGraph_t captured_ = nullptr;
  cudaGraphExec_t replay_ = nullptr;
};

class CudaMemory final : public DeviceMemory {
 public:
  CudaMemory(BufferRing& inputs, BufferRing& outputs) : images_{Image(inputs), Image(outputs)} {}

  tersum::Stream stream() const override { return stream_.view(); }
  void* image(const void* host) const override {
    const auto* address = static_cast<const std::byte*>(host);
    for (const Image& image : images_)
      if (address >= image.ring.first() && address <= image.ring.first() + image.ring.total_bytes())
        return image.device.as<std::byte>() + (address - image.ring.first());
    throw Error(Code::Internal, "an address beyond the rings has no image");
  }
  void upload(Part part) override { copy_images(part, cudaMemcpyHostToDevice); }
  void download(Part part) override { copy_images(part, cudaMemcpyDeviceToHost); }
  void copy(void* to, const void* from, std::size_t bytes) override {
    gpu::check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream_.get()),
               "cudaMemcpyAsync");
    stream_.synchronize();
  }
  std::vector<Timing> time(Communicator& communicator, int warmup, int iterations, bool graph,
                           const std::vector<Enqueue>& contenders) override;
  int calls(int warmup, int iterations) const override {
    return std::max(warmup, 1) + (1 + kBatches) * iterations;
  }

 private:
  void copy_images(Part part, cudaMemcpyKind kind) {
    for (Image& image : images_) {
      void* device = image.device.data();
      void* host = image.ring.first();
      const bool up = kind == cudaMemcpyHostToDevice;
      gpu::check(
          cudaMemcpyAsync(up ? device : host, up ? host : device,
                          part == Part::All ? image.ring.total_bytes() : image.ring.stride_bytes(),
                          kind, stream_.get()),
          "cudaMemcpyAsync");
    }
    stream_.synchronize();
  }

  gpu::Stream stream_;
  std::array<Image, 2> images_;
};

std::vector<Timing> CudaMemory::time(Communicator& communicator, int warmup, int iterations,
                                     bool graph, const std::vector<Enqueue>& contenders) {
  std::deque<Batch> batches;
  for (const Enqueue& call : contenders) {
    for (int i = 0; i < std::max(warmup, 1); ++i) call(i);
    stream_.synchronize();
    batches.emplace_back(stream_, iterations, graph, call).launch();
  }
  std::vector<std::array<double, kBatches>> times(batches.size());
  const gpu::Event begin(gpu::Event::Timing::On), end(gpu::Event::Timing::On);
  for (std::size_t turn = 0; turn < kBatches; ++turn) {
    for (std::size_t c = 0; c < batches.size(); ++c) {
      stream_.synchronize();
      communicator.barrier().wait();
      begin.record(stream_);
      batches[c].launch();
      end.record(stream_);
      end.synchronize();
      times[c][turn] = 1e3 * static_cast<double>(end.milliseconds_since(begin)) / iterations;
    }
  }
  std::vector<Timing> timings;
  for (auto& mine : times) {
    communicator.all_reduce(mine.data(), mine.data(), mine.size(), DType::Float64, ReduceOp::Max)
        .wait();
    std::sort(mine.begin(), mine.end());
    timings.push_back({mine[kBatches / 2], mine.front(), mine.back()});
  }
  return timings;
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
