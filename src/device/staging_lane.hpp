// Two ways through memory that the network can reach, each a ring of slots that a stream fills or
// empties in order: OutLane takes tensors out, InLane brings them in.
#pragma once

#include <cstddef>
#include <deque>
#include <span>
#include <utility>

#include "cuda/buffer.hpp"
#include "cuda/event.hpp"
#include "cuda/stream.hpp"
#include "src/device/stream_gate.hpp"
#include "src/device/stream_notice.hpp"
#include "src/engine/external_event.hpp"

namespace tersum::runtime {

/// Where slots are: in pinned host memory, or in the device's own.
enum class SlotMemory { Pinned, Device };

/// Bytes in device memory. Several of them lie packed in a slot, in their order.
struct Run {
  std::size_t offset = 0, bytes = 0;
};

/// One use of a slot.
struct Passage {
  std::byte* slot = nullptr;
  StreamGate::Ticket ticket = 0;
};

/// What both lanes are made of. Slots are used in the order of reserve(); no call blocks the host.
class StagingLane {
 public:
  /// For the device that is current now. Allocates `slots` slots of `slot_bytes`.
  StagingLane(SlotMemory memory, std::size_t slot_bytes, int slots);

  /// All slots, and a part of one; with the registration that set_registration() was given.
  Buffer memory() const noexcept;
  Buffer part(const Passage& passage, std::size_t offset, std::size_t bytes) const noexcept;
  void set_registration(void* registration) noexcept { registration_ = registration; }
  std::size_t index_of(const Passage& passage) const noexcept;

  gpu::StreamView stream() const noexcept { return stream_; }
  std::size_t slot_bytes() const noexcept { return slot_bytes_; }
  int slots() const noexcept { return slots_; }

  /// The next slot. The same thread, or under the same lock, as the call to copy() for it: both
  /// have the same order.
  Passage reserve();

  /// Lets the stream run to its end: nobody will release anything any more.
  void release_all() noexcept { gate_.open_all(); }

  /// What the stream does from now on comes after `event`, on this lane.
  void wait(const gpu::Event& event) const { stream_.wait(event); }

 protected:
  gpu::Stream stream_;
  StreamGate gate_;

 private:
  const std::size_t slot_bytes_;
  const int slots_;
  gpu::PinnedBuffer pinned_;  // one of the two
  gpu::DeviceBuffer device_;
  void* registration_ = nullptr;
};

/// Out of a tensor. A slot can be read when copy()'s listener has been told, and is
/// used again after release().
class OutLane : public StagingLane {
 public:
  using StagingLane::StagingLane;

  /// Puts the copy into stream(): tensor to slot, as soon as the slot is free.
  void copy(const Passage& passage, const void* from, std::span<const Run> runs,
            StreamListener& arrived);

  /// The engine needs the slot no more. Any thread, any order, also twice; must be called in the
  /// end.
  void release(const Passage& passage) noexcept { gate_.open(passage.ticket); }

 private:
  bool first_round_ = true;  // no slot has been used yet that copy() comes to
};

/// Into a tensor. A slot can be written when the event given to expect() has
/// happened; what is in it at release() goes to the device.
class InLane : public StagingLane {
 public:
  using StagingLane::StagingLane;

  /// Puts the copy into stream(): slot to tensor, as soon as the slot is released. When
  /// `copied` is told, it submits on_copied() to the engine.
  void copy(const Passage& passage, void* to, std::span<const Run> runs, StreamListener& copied);

  /// The slot has been written, or never will. As OutLane::release().
  void release(const Passage& passage) noexcept { gate_.open(passage.ticket); }

  /// `vacant` happens when the slot's former use is over. Engine's thread, in the order of
  /// reserve().
  void expect(const Passage& passage, ExternalEvent& vacant);

  /// Takes an expect() back. Engine's thread.
  void forget(const ExternalEvent& vacant);

  /// A copy is done: they end in order. Engine's thread.
  void on_copied(const Status& status);

 private:
  bool is_vacant(StreamGate::Ticket ticket) const noexcept;

  StreamGate::Ticket copied_ = 0;  // all copies up to this ticket are done
  std::deque<std::pair<StreamGate::Ticket, ExternalEvent*>> expected_;
};

}  // namespace tersum::runtime
