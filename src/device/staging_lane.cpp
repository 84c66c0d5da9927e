#include "src/device/staging_lane.hpp"

#include <cuda_runtime_api.h>

#include <chrono>
#include <cstdint>
#include <mutex>
#include <thread>

#include "cuda/error.hpp"

namespace tersum::runtime {
namespace {

/// Where there are more streams than queues, a new one may come behind one that is held.
constexpr std::chrono::seconds kLongestFirstWait{1};

/// The first wait of a new stream, for what is open already, is over before another stream's
/// begins. With driver 580, of two streams of a GPU that came to their first wait at once one
/// sometimes stayed behind the other for ever: a rank then waited for one that shares its GPU.
void pass_once(gpu::StreamView stream, const StreamGate& gate) {
  static std::mutex one_at_a_time;
  const std::lock_guard lock(one_at_a_time);
  gate.hold(stream, 0);
  const auto begin = std::chrono::steady_clock::now();
  while (!stream.is_done() && std::chrono::steady_clock::now() - begin < kLongestFirstWait)
    std::this_thread::yield();
}

}  // namespace

StagingLane::StagingLane(SlotMemory memory, std::size_t slot_bytes, int slots)
    : stream_(gpu::StreamPriority::High), slot_bytes_(slot_bytes), slots_(slots) {
  const std::size_t bytes = slot_bytes * static_cast<std::size_t>(slots);
  if (memory == SlotMemory::Pinned)
    pinned_ = gpu::PinnedBuffer(bytes);
  else
    device_ = gpu::DeviceBuffer(bytes);
  pass_once(stream_, gate_);
}

Buffer StagingLane::memory() const noexcept {
  Buffer all = device_.bytes() > 0 ? Buffer(device_) : Buffer(pinned_);
  all.registration = registration_;
  return all;
}

Buffer StagingLane::part(const Passage& passage, std::size_t offset,
                         std::size_t bytes) const noexcept {
  Buffer part = memory();
  part.data = bytes == 0 ? nullptr : passage.slot + offset;
  part.bytes = bytes;
  return part;
}

std::size_t StagingLane::index_of(const Passage& passage) const noexcept {
  return (passage.ticket - 1) % static_cast<StreamGate::Ticket>(slots_);
}

Passage StagingLane::reserve() {
  Passage passage{nullptr, gate_.take()};
  passage.slot = static_cast<std::byte*>(memory().data) + index_of(passage) * slot_bytes_;
  return passage;
}

namespace {

/// Beyond this stride CUDA has no copy of several runs.
constexpr std::size_t kLargestStride = (std::size_t{1} << 31) - 1;

/// The distance from each run to the next if that and their lengths are the same, else 0.
std::size_t stride_of(std::span<const Run> runs) {
  if (runs.size() < 2 || runs[1].offset < runs[0].offset + runs[0].bytes) return 0;
  const std::size_t stride = runs[1].offset - runs[0].offset;
  for (std::size_t i = 1; i < runs.size(); ++i)
    if (runs[i].bytes != runs[0].bytes || runs[i].offset != runs[i - 1].offset + stride) return 0;
  return stride <= kLargestStride ? stride : 0;
}

/// `tensor` is in device memory, `slot` holds the runs packed.
void copy_runs(std::byte* slot, std::byte* tensor, std::span<const Run> runs, bool inward,
               gpu::StreamView stream) {
  if (const std::size_t stride = stride_of(runs); stride > 0) {
    const std::size_t bytes = runs[0].bytes;
    std::byte* const first = tensor + runs[0].offset;
    return gpu::check(cudaMemcpy2DAsync(inward ? first : slot, inward ? stride : bytes,
                                        inward ? slot : first, inward ? bytes : stride, bytes,
                                        runs.size(), cudaMemcpyDefault, stream.get()),
                      "cudaMemcpy2DAsync");
  }
  for (const Run& run : runs) {
    if (run.bytes == 0) continue;
    std::byte* const here = tensor + run.offset;
    gpu::check(cudaMemcpyAsync(inward ? here : slot, inward ? slot : here, run.bytes,
                               cudaMemcpyDefault, stream.get()),
               "cudaMemcpyAsync");
    slot += run.bytes;
  }
}

}  // namespace

void OutLane::copy(const Passage& passage, const void* from, std::span<const Run> runs,
                   StreamListener& arrived) {
  const auto slots = static_cast<StreamGate::Ticket>(this->slots());
  first_round_ = first_round_ && passage.ticket <= slots;
  if (!first_round_) gate_.hold(stream_, passage.ticket - slots);
  copy_runs(passage.slot, static_cast<std::byte*>(const_cast<void*>(from)), runs, false, stream_);
  notify(stream_, arrived);
}

void InLane::copy(const Passage& passage, void* to, std::span<const Run> runs,
                  StreamListener& copied) {
  gate_.hold(stream_, passage.ticket);
  copy_runs(passage.slot, static_cast<std::byte*>(to), runs, true, stream_);
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
