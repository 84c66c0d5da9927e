// Two ways through pinned memory, each a ring of slots that a stream fills or empties in order:
// OutLane takes tensors out of device memory, InLane brings them in.
#pragma once

#include <cstddef>
#include <deque>
#include <utility>

#include "cuda/buffer.hpp"
#include "cuda/event.hpp"
#include "cuda/stream.hpp"
#include "src/device/stream_gate.hpp"
#include "src/device/stream_notice.hpp"
#include "src/engine/external_event.hpp"

namespace tersum::runtime {

/// Runs of equal size in device memory, packed in a slot.
struct Runs {
  std::size_t count = 0;
  std::size_t bytes = 0;   ///< of one run
  std::size_t stride = 0;  ///< from one run to the next in device memory
};

/// One use of a slot.
struct Passage {
  std::byte* slot = nullptr;
  StreamGate::Ticket ticket = 0;
};

/// What both lanes are made of. Slots are used in the order of reserve(); no call blocks the host.
class StagingLane {
 public:
  /// For the device that is current now. Allocates `slots` pinned slots of `slot_bytes`.
  StagingLane(std::size_t slot_bytes, int slots);

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
  gpu::PinnedBuffer memory_;
};

/// From device memory to the host. A slot can be read when copy()'s listener has been told, and is
/// used again after release().
class OutLane : public StagingLane {
 public:
  using StagingLane::StagingLane;

  /// Puts the copy into stream(): device memory to the slot, as soon as the slot is free.
  void copy(const Passage& passage, const void* from, const Runs& runs, StreamListener& arrived);

  /// The host needs the slot no more. Any thread, any order, also twice; must be called in the end.
  void release(const Passage& passage) noexcept { gate_.open(passage.ticket); }
};

/// From the host to device memory. A slot can be written when the event given to expect() has
/// happened; what is in it at release() goes to the device.
class InLane : public StagingLane {
 public:
  using StagingLane::StagingLane;

  /// Puts the copy into stream(): the slot to device memory, as soon as it is released. When
  /// `copied` is told, it submits on_copied() to the engine.
  void copy(const Passage& passage, void* to, const Runs& runs, StreamListener& copied);

  /// The host has written the slot, or never will. As OutLane::release().
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
