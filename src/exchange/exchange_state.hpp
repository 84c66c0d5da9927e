// The state behind GradientExchange: the plan, the gradients' states, and the engine's side of a
// training step.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "scheduler/plan.hpp"
#include "scheduler/scheduler.hpp"
#include "src/device/device_gradients.hpp"
#include "src/engine/group.hpp"
#include "src/exchange/slice_job.hpp"
#include "src/session.hpp"
#include "tersum/gradient_exchange.hpp"

namespace tersum {

/// Everything of one exchange. Members marked [user] are guarded by mutex; those marked [engine]
/// belong to the engine's thread. A round is one attempt at a step: commit() and rollback() both
/// begin the next round, only commit() the next step; so messages of a discarded attempt can never
/// be taken for those of the next.
class ExchangeState : public std::enable_shared_from_this<ExchangeState> {
 public:
  ExchangeState(const Communicator& communicator, std::vector<Gradient> gradients,
                const ExchangeOptions& options);
  ~ExchangeState();

  /// Collective: compares the plans of all ranks and makes the exchange's own group.
  void agree(Communicator communicator);

  /// Ends what is pending with Aborted, here and on all ranks that wait for it, and returns when
  /// nothing touches the gradients any more.
  void close() noexcept;

  Work submit(std::size_t index, void* data, Stream stream);
  void wait(std::size_t index);
  void wait_all();
  void commit();
  void rollback();
  std::vector<std::byte> save();
  void load(std::span<const std::byte> bytes);

  std::size_t index_of(std::string_view key) const;
  const scheduler::Plan& plan() const noexcept { return plan_; }
  const std::vector<Gradient>& gradients() const noexcept { return gradients_; }
  const Compressor& compressor_of(std::size_t index) const { return *tracks_[index].compressor; }
  ExchangeStatistics statistics() const;

 private:
  class ExchangeGroup;
  class GradientWork;

  /// One gradient.
  struct Track {
    std::shared_ptr<const Compressor> compressor, reducer;
    std::unique_ptr<CompressorState> state, reducer_state;
    std::uint64_t key = 0;        ///< hash of the name
    std::byte* result = nullptr;  ///< staged until all its slices are done
    std::vector<std::byte> host_result;
    std::vector<std::uint32_t> slices;
    std::shared_ptr<WorkState> work;  ///< [user] of this round; null: not submitted
    void* data = nullptr;             ///< [engine]
    bool submitted = false;           ///< [engine]
    std::size_t slices_to_deliver = 0, slices_to_end = 0;  ///< [engine]
    std::size_t slices_in_flight = 0;                      ///< [engine]
    Status failure;                                        ///< [engine]
    std::shared_ptr<WorkState> pending;                    ///< [engine] the work to complete
  };
  /// One slice.
  struct SliceTrack {
    std::size_t gradients_to_come = 0;  ///< [engine]
    bool started = false;               ///< [engine]
    std::vector<std::size_t> gradients;
    std::string label;
  };

  void build_plan(const ExchangeOptions& options);
  void build_states();
  void check_memory(const Gradient& gradient, const void* data, Stream stream) const;
  runtime::DeviceGradients* device_of(std::size_t gradient) const noexcept {
    return gradients_[gradient].memory == MemoryType::Cuda ? device_.get() : nullptr;
  }
  [[noreturn]] void report_difference(Communicator& communicator, const std::string& mine,
                                      int other);

  // [user], with the lock held
  bool all_submitted_and_done() const;
  std::vector<std::shared_ptr<WorkState>> works() const;
  void next_round(bool commit);
  template <class Gradients>
  std::string missing_keys(const Gradients& among) const;
  std::string what_is_missing() const;

  /// Error Timeout that names them if `work`, of a gradient of this step, waits for gradients in
  /// its slices that have not been submitted.
  void check_companions(std::size_t gradient, const WorkState& work) const;

  // [engine]
  void begin_round(std::uint64_t round, std::uint64_t step);
  void on_submit(std::size_t index, void* data, std::shared_ptr<WorkState> work,
                 const Status& ready);
  void pump();
  void start_slice(std::uint32_t slice);
  runtime::Task<> deliver(runtime::Operation& op, std::size_t gradient);
  runtime::Task<> run_slice(runtime::Operation& op, std::uint32_t slice,
                            std::shared_ptr<runtime::SliceJob> job);
  std::shared_ptr<runtime::SliceJob> make_job(std::uint32_t slice);
  void on_slice_end(std::uint32_t slice, const Status& status);
  void on_arrival(std::uint64_t round, std::uint32_t slice);
  void fail_round(std::uint64_t round, const Status& status);
  void complete_if_ended(Track& track);

  const std::shared_ptr<CommunicatorState> parent_;
  const std::shared_ptr<Session> session_;
  std::vector<Gradient> gradients_;
  std::unordered_map<std::string, std::size_t> index_;
  const ReduceOp op_;
  std::unique_ptr<runtime::DeviceGradients>
      device_;  ///< if there are gradients on one; outlives tracks_
  std::uint64_t seed_ = 0;
  scheduler::Plan plan_;
  std::string description_;
  std::vector<Track> tracks_;
  std::vector<SliceTrack> slices_;
  std::shared_ptr<ExchangeGroup> group_;
  std::uint64_t dense_bytes_per_step_ = 0;
  std::size_t credit_bytes_ = 0;

  mutable std::mutex mutex_;
  std::uint64_t user_round_ = 0, user_step_ = 0;  ///< [user]
  std::size_t user_submitted_ = 0;                ///< [user]
  std::uint64_t committed_steps_ = 0;             ///< [user]

  std::unique_ptr<scheduler::Scheduler> scheduler_;  ///< [engine]
  std::uint64_t round_ = 0, step_ = 0;               ///< [engine]
  Status round_failure_;                             ///< [engine]
  bool granting_ = false;  ///< pump() is at it, or a later turn of the engine will be
  std::map<std::uint64_t, std::set<std::uint32_t>>
      early_slices_;                               ///< [engine] arrivals for later rounds
  std::map<std::uint64_t, Status> doomed_rounds_;  ///< [engine]
  std::atomic<std::uint64_t> slice_count_{0}, overdrawn_count_{0};
};

}  // namespace tersum
