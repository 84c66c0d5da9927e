#include "src/device/staging_lane.hpp"

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda/error.hpp"

namespace tersum::runtime {

StagingLane::StagingLane(std::size_t slot_bytes, int slots)
    : stream_(gpu::StreamPriority::High),
      slot_bytes_(slot_bytes),
      slots_(slots),
      memory_(slot_bytes * static_cast<std::size_t>(slots)) {}

Passage StagingLane::reserve() {
  const StreamGate::Ticket ticket = gate_.take();
  const std::size_t index = (ticket - 1) % static_cast<StreamGate::Ticket>(slots_);
  return {memory_.data() + index * slot_bytes_, ticket};
}

namespace {

/// Beyond this stride CUDA has no copy of several runs.
constexpr std::size_t kLargestStride = (std::size_t{1} << 31) - 1;

void copy_runs(std::byte* to, std::size_t to_stride, const std::byte* from, std::size_t from_stride,
               const Runs& runs, cudaMemcpyKind kind, gpu::StreamView stream) {
  if (runs.count > 1 && runs.stride <= kLargestStride) {
    return gpu::check(cudaMemcpy2DAsync(to, to_stride, from, from_stride, runs.bytes, runs.count,
                                        kind, stream.get()),
                      "cudaMemcpy2DAsync");
  }
  for (std::size_t i = 0; i < runs.count; ++i)
    gpu::check(
        cudaMemcpyAsync(to + i * to_stride, from + i * from_stride, runs.bytes, kind, stream.get()),
        "cudaMemcpyAsync");
}

}  // namespace

void OutLane::copy(const Passage& passage, const void* from, const Runs& runs,
                   StreamListener& arrived) {
  gate_.hold(stream_, passage.ticket - static_cast<StreamGate::Ticket>(slots()));
  copy_runs(passage.slot, runs.bytes, static_cast<const std::byte*>(from), runs.stride, runs,
            cudaMemcpyDeviceToHost, stream_);
  notify(stream_, arrived);
}

void InLane::copy(const Passage& passage, void* to, const Runs& runs, StreamListener& copied) {
  gate_.hold(stream_, passage.ticket);
  copy_runs(static_cast<std::byte*>(to), runs.stride, passage.slot, runs.bytes, runs,
            cudaMemcpyHostToDevice, stream_);
  notify(stream_, copied);
}

bool InLane::is_vacant(StreamGate::Ticket ticket) const noexcept {
  const StreamGate::Ticket former = ticket - static_cast<StreamGate::Ticket>(slots());
  return static_cast<std::int32_t>(copied_ - former) >= 0;
}

void InLane::expect(const Passage& passage, ExternalEvent& vacant) {
  if (is_vacant(passage.ticket)) return vacant.happen();
  expected_.emplace_back(passage.ticket, &vacant);
}

void InLane::forget(const ExternalEvent& vacant) {
  std::erase_if(expected_, [&](const auto& entry) { return entry.second == &vacant; });
}

void InLane::on_copied(const Status& status) {
  ++copied_;
  while (!expected_.empty() && is_vacant(expected_.front().first)) {
    ExternalEvent& vacant = *expected_.front().second;
    expected_.pop_front();
    vacant.happen(status);
  }
}

}  // namespace tersum::runtime
