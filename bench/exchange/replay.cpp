#include "exchange/replay.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>

#include "cuda/error.hpp"
#include "cuda/event.hpp"
#include "exchange/busy_kernel.hpp"
#include "perf/compressed.hpp"
#include "scheduler/simulator.hpp"

namespace tersum::replay {
namespace {

constexpr int kWarmUp = 2;

scheduler::Time time_of(std::chrono::nanoseconds time) {
  return std::chrono::duration_cast<scheduler::Time>(time);
}

}  // namespace

Replay::Replay(Communicator communicator, std::vector<TracedGradient> trace,
               double link_bytes_per_second)
    : communicator_(std::move(communicator)),
      trace_(std::move(trace)),
      link_(link_bytes_per_second) {
  for (const TracedGradient& gradient : trace_) elements_ += gradient.count;
  originals_ = gpu::DeviceBuffer(bytes());
  gradients_ = gpu::DeviceBuffer(bytes());
  std::vector<float> values(elements_);
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<float>(perf::gradient_value(communicator_.rank(), i));
  gpu::check(cudaMemcpyAsync(originals_.data(), values.data(), bytes(), cudaMemcpyHostToDevice,
                             stream_.get()),
             "cudaMemcpyAsync");
  stream_.synchronize();
}

void Replay::restore() {
  gpu::check(cudaMemcpyAsync(gradients_.data(), originals_.data(), bytes(),
                             cudaMemcpyDeviceToDevice, stream_.get()),
             "cudaMemcpyAsync");
  stream_.synchronize();
}

double Replay::step(GradientExchange* exchange) {
  restore();
  communicator_.barrier().wait();
  const gpu::Event begin(gpu::Event::Timing::On), end(gpu::Event::Timing::On);
  begin.record(stream_);
  std::vector<Work> works;
  auto* gradient = gradients_.as<float>();
  for (std::size_t g = 0; g < trace_.size(); ++g) {
    keep_busy(stream_, trace_[g].time);
    if (exchange != nullptr) works.push_back(exchange->submit(g, gradient, stream_.view()));
    gradient += trace_[g].count;
  }
  for (std::size_t g = trace_.size(); g-- > 0;) {
    if (exchange != nullptr) works[g].wait_on(stream_.view());
    keep_busy(stream_, trace_[g].time / 2);
  }
  end.record(stream_);
  end.synchronize();
  if (exchange != nullptr) exchange->commit();
  return static_cast<double>(end.milliseconds_since(begin));
}

double Replay::median_of_slowest(std::vector<double> times) {
  communicator_.all_reduce(times.data(), times.data(), times.size(), DType::Float64, ReduceOp::Max)
      .wait();
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

double Replay::compute_ms(int steps) {
  std::vector<double> times;
  for (int i = 0; i < kWarmUp; ++i) step(nullptr);
  for (int i = 0; i < steps; ++i) times.push_back(step(nullptr));
  return median_of_slowest(std::move(times));
}

double Replay::bound_ms(double wire_ratio) const {
  if (link_ <= 0) return 0;
  std::vector<scheduler::LayerCost> layers;
  for (auto gradient = trace_.rbegin(); gradient != trace_.rend(); ++gradient)
    layers.push_back({time_of(gradient->time / 2), time_of(gradient->time),
                      static_cast<std::size_t>(static_cast<double>(gradient->count) *
                                               sizeof(float) * wire_ratio)});
  const auto bound = scheduler::lower_bound(layers, {scheduler::Time{0}, 1e9 / link_});
  return std::chrono::duration<double, std::milli>(bound).count();
}

Result Replay::run(const std::string& compressor, int steps) {
  std::vector<Gradient> gradients;
  for (std::size_t g = 0; g < trace_.size(); ++g) {
    Gradient gradient;
    gradient.key = std::to_string(g) + "." + trace_[g].name;
    gradient.count = trace_[g].count;
    gradient.position = static_cast<int>(trace_.size() - 1 - g);
    gradient.memory = MemoryType::Cuda;
    gradients.push_back(std::move(gradient));
  }
  ExchangeOptions options;
  options.compressor = compressor;
  GradientExchange exchange(communicator_, std::move(gradients), options);
  for (int i = 0; i < kWarmUp; ++i) step(&exchange);
  const auto before = exchange.statistics();
  std::vector<double> times;
  for (int i = 0; i < steps; ++i) times.push_back(step(&exchange));
  const auto after = exchange.statistics();
  Result result;
  result.compressor = compressor;
  result.iteration_ms = median_of_slowest(std::move(times));
  double sent = static_cast<double>(after.sent_bytes - before.sent_bytes) / steps;
  communicator_.all_reduce(&sent, &sent, 1, DType::Float64, ReduceOp::Average).wait();
  result.wire_bytes = sent;
  result.bound_ms = bound_ms(sent / static_cast<double>(bytes()));
  return result;
}

}  // namespace tersum::replay
