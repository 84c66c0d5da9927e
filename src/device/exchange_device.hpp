// The device side of an exchange as its codecs see it.
#pragma once

#include <array>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "cuda/event.hpp"
#include "cuda/gather.hpp"
#include "cuda/pool.hpp"
#include "cuda/twin.hpp"
#include "src/device/device_gradients.hpp"
#include "src/device/pinned_pool.hpp"
#include "src/device/stream_event.hpp"
#include "src/engine/engine.hpp"

namespace tersum::runtime {

class HierarchicalExchange;
class PeerExchange;

/// A DeviceGradients with what its codecs share.
class ExchangeDevice final : public DeviceGradients {
 public:
  /// Where the elements of one slice are read and written by one launch each; null where none is
  /// needed.
  struct SliceTables {
    std::unique_ptr<gpu::GatherPlan> inputs, results;
  };
  /// Status words wander from slice to slice.
  using StatusWord = std::unique_ptr<gpu::DecodeStatus>;

  ExchangeDevice(Engine& engine, std::size_t slices);
  ~ExchangeDevice() override;

  std::unique_ptr<CompressorState> make_state(const Compressor& compressor,
                                              std::size_t count) override;
  std::byte* allocate(std::size_t bytes) override;
  void check_memory(const void* data, const std::string& name) const override;
  void when_reached(Stream stream, std::function<void(const Status&)> function) override;
  void connect(Session& session, const std::shared_ptr<Group>& group) override;
  void prepare(std::span<const std::shared_ptr<const SliceJob>> jobs,
               std::size_t credit_bytes) override;
  std::uint64_t layout_digest() const noexcept override;
  Task<> exchange(Operation& op, const SliceJob& job) override;
  void abort() noexcept override;
  void recover() override;
  Task<> copy(Operation& op, void* to, const void* from, std::size_t bytes) override;

  int device() const noexcept { return device_; }
  Engine& engine() const noexcept { return engine_; }
  gpu::BufferPool& memory() noexcept { return memory_; }
  PinnedPool& pinned() noexcept { return pinned_; }
  gpu::EventPool& events() noexcept { return events_; }
  SliceTables& tables(std::uint32_t slice) { return tables_[slice]; }
  const gpu::Twin& twin(const Compressor& compressor) const { return *twins_.at(&compressor); }

  /// The stream of a slice: a few take turns. It runs after the last commit of states.
  gpu::StreamView stream(std::uint32_t slice);
  StatusWord take_status(gpu::StreamView stream);
  /// Copies from or to these may still be in a stream. They go back when nothing is, which the
  /// engine does not wait for: a stream may be behind one that waits for works that it has yet to
  /// fail.
  void keep(PinnedLease messages) {
    const std::lock_guard lock(kept_mutex_);
    kept_.push_back(std::move(messages));
  }
  void give_status(StatusWord status) noexcept { statuses_.push_back(std::move(status)); }

  /// Where states change between steps; next steps wait for it.
  gpu::StreamView states_stream() const noexcept { return states_stream_; }
  void states_changed() { states_changed_.record(states_stream_); }

 private:
  void make_room(const SliceJob& job);
  void make_room_for_messages(std::span<const std::shared_ptr<const SliceJob>> jobs,
                              std::size_t credit_bytes);
  std::size_t bytes_of_messages(const SliceJob& job) const;
  void synchronize() const;

  /// With two, one slice is prepared while another one is reduced. Not more: each busy stream takes
  /// one of CUDA's few queues (most_held_streams()).
  static constexpr std::size_t kStreams = 2;

  Engine& engine_;
  const int device_;
  // All of high priority: what trains is in the others.
  gpu::Stream ready_stream_{gpu::StreamPriority::High}, states_stream_{gpu::StreamPriority::High};
  gpu::Event ready_, states_changed_;
  std::array<gpu::Stream, kStreams> streams_{gpu::Stream(gpu::StreamPriority::High),
                                             gpu::Stream(gpu::StreamPriority::High)};
  gpu::EventPool events_;
  gpu::BufferPool memory_;
  PinnedPool pinned_;
  std::mutex kept_mutex_;
  std::vector<PinnedLease> kept_;
  std::unordered_map<const Compressor*, std::unique_ptr<gpu::Twin>> twins_;
  std::vector<gpu::DeviceBuffer> results_;
  std::vector<SliceTables> tables_;
  std::vector<StatusWord> statuses_;
  Session* session_ = nullptr;
  std::shared_ptr<Group> group_;  // of the communicator
  // Null where slices do not go that way; without both, through messages.
  std::unique_ptr<PeerExchange> peers_;
  std::unique_ptr<HierarchicalExchange> hierarchy_;
};

/// The twin's state in one that ExchangeDevice::make_state() gave; null for null.
gpu::TwinState* twin_state_of(CompressorState* state) noexcept;

/// Puts the steps of a slice into its stream.
std::unique_ptr<SliceCodec> make_device_codec(ExchangeDevice& device, Operation& op,
                                              const SliceJob& job);

}  // namespace tersum::runtime
