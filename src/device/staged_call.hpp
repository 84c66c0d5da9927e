// One collective on device memory that goes through the slots of two lanes: its slices, and what
// the engine does with each.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "src/collectives/collectives.hpp"
#include "src/device/device_collectives.hpp"
#include "src/device/slot_exchange.hpp"
#include "src/device/staged_shape.hpp"
#include "src/device/staging_lane.hpp"
#include "src/engine/engine.hpp"

namespace tersum::runtime {

class StagedCall;

/// A part of a call that goes through one slot of each lane (or of one of them).
struct StagedSlice {
  std::size_t begin = 0, count = 0;  ///< elements of each run, as far as it has them
  Passage out, in;                   ///< slots are null where this rank has none
  ExternalEvent arrived, vacant;     ///< the out slot is full; the in slot is free

  /// Tells the call what a stream has done with the slice.
  struct Notice final : StreamListener {
    void on_reached(const Status& status) noexcept override;
    StagedCall* call = nullptr;
    StagedSlice* slice = nullptr;  ///< null: of the whole call
    bool inward = false;
  };
  Notice has_arrived, was_copied;
};

/// Whose call it is. Functions are for the engine's thread but for what says otherwise.
class StagingOwner {
 public:
  virtual OutLane& out_lane() noexcept = 0;
  virtual InLane& in_lane() noexcept = 0;
  /// What moves slots in device memory; null if they are in pinned memory.
  virtual SlotExchange* slot_exchange() noexcept = 0;

  /// Runs `function` on the engine's thread, soon; drops it when the engine is gone. Any thread.
  virtual void post(std::function<void()> function) = 0;

  /// An operation of the call has failed; its slices have not been let go yet.
  virtual void on_failed(const StagedCall& call, const Status& status) = 0;
  /// All parts of the call have ended well: has anything else failed?
  virtual Status outcome(const StagedCall& call) = 0;
  /// The call is over, and nobody will call it any more: it may be destroyed.
  virtual void on_over(const StagedCall& call) = 0;

 protected:
  ~StagingOwner() = default;
};

/// Lives until its operations have ended and the streams have told everything: then its Work is
/// complete. Made, reserved and enqueued under the lock that gives calls their order; the rest
/// happens on the engine's thread.
class StagedCall {
 public:
  /// `group`: the ranks that exchange the slots. `witnesses`: ranks that build on each other's
  /// slots; if given, the call succeeds only if it has so far on all of them.
  StagedCall(StagingOwner& owner, std::shared_ptr<Group> group, const DeviceCall& call,
             Algorithm algorithm, std::shared_ptr<Group> witnesses = nullptr);

  const DeviceCall& call() const noexcept { return call_; }
  const Group& group() const noexcept { return *group_; }
  const std::shared_ptr<WorkState>& work() const noexcept { return work_; }
  std::vector<StagedSlice>& slices() noexcept { return slices_; }

  /// Cuts the runs into slices that fit, at least one.
  void cut();
  /// One more slice, of elements of which a run begins at `begin`.
  void add_slice(std::size_t begin, std::size_t count);
  /// Takes the slots of all slices, which are not added to after it.
  void reserve();

  /// Starts the operations.
  void start(Engine& engine, std::chrono::milliseconds timeout, const Signature& signature);

  /// Puts one slice's copies into the lanes; `input` and `output` are where its first runs begin.
  void copy_out(StagedSlice& slice, const std::byte* input);
  void copy_in(StagedSlice& slice, std::byte* output);

  /// Puts into `stream` what need not leave the device.
  void copy_own(gpu::StreamView stream) const;

  /// The call is not over before all that is in `stream` now is. Once.
  void wait_for(gpu::StreamView stream);

  /// All copies are in the streams; or `status`, and those of slices from `first` on never will be.
  void enqueued(const Status& status = Status::ok(), std::size_t first = 0);

 private:
  friend struct StagedSlice::Notice;

  Task<> exchange(Operation& op, StagedSlice& slice);
  Task<> confirm(Operation& op);
  Task<> collective(Operation& op, StagedSlice& slice);
  Task<> trade(Operation& op, StagedSlice& slice);
  Task<> send(Operation& op);
  Task<> receive(Operation& op);
  template <class Enqueue>
  void expect_notice(const Enqueue& enqueue);
  std::vector<Run> runs_in(const std::vector<StagedRun>& runs, const StagedSlice& slice,
                           std::size_t element) const;
  std::size_t run_bytes(const StagedSlice& slice) const noexcept;
  void release(const StagedSlice& slice) noexcept;
  void on_notice(const StagedSlice::Notice& notice, const Status& status);
  void exchange_ended(std::span<const StagedSlice> slices, const Status& status);
  void part_ended(const Status& status);

  StagingOwner& owner_;
  const std::shared_ptr<Group> group_, witnesses_;
  const DeviceCall call_;
  const Algorithm algorithm_;
  const StagedShape shape_;
  const std::shared_ptr<WorkState> work_ = std::make_shared<WorkState>();
  std::vector<StagedSlice> slices_;
  StagedSlice::Notice end_;
  int exchanging_ = 0;           // operations on slices that have not ended
  ExternalEvent exchanged_;      // all of them have ended, or the first badly
  std::atomic<int> pending_{1};  // operations, notices, and the enqueueing itself
  Status failure_;               // the first
};

}  // namespace tersum::runtime
