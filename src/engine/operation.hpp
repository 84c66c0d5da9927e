// Operation: one collective, point-to-point call or slice exchange in flight, and what its
// coroutine can await.
#pragma once

#include <chrono>
#include <coroutine>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "src/engine/group.hpp"
#include "src/engine/scratch.hpp"
#include "src/engine/signature.hpp"
#include "src/engine/task.hpp"
#include "src/engine/work_state.hpp"
#include "transport/transport.hpp"

namespace tersum::runtime {

class Engine;
class Operation;
class ExternalEvent;

using Clock = std::chrono::steady_clock;

/// One posted message of an operation, in the operation's keeping until the transport has let go of
/// it.
class TransferRequest final : public transport::Request {
 public:
  TransferRequest(Operation& operation, int group_rank, bool is_receive)
      : owner(operation), peer(group_rank), receiving(is_receive) {}
  void on_complete(const Status& status, std::size_t bytes) override;

  Operation& owner;
  const int peer;  ///< group rank
  const bool receiving;
  bool complete = false;
  bool abandoned = false;  ///< its Transfer is gone; only the buffer still matters
  Status status;
  std::size_t bytes = 0;
  std::coroutine_handle<> waiter;
};

/// A message on its way: it was started when this object was made. Await it for the bytes moved, or
/// the Error. Letting it go without awaiting it cancels it.
class [[nodiscard]] Transfer {
 public:
  explicit Transfer(TransferRequest* request) : request_(request) {}
  Transfer(Transfer&& other) noexcept : request_(std::exchange(other.request_, nullptr)) {}
  Transfer& operator=(Transfer&&) = delete;
  ~Transfer();

  bool await_ready() const noexcept;
  void await_suspend(std::coroutine_handle<> waiter) noexcept;
  std::size_t await_resume();

 private:
  TransferRequest* request_;
};

/// A computation: runs on the pool if it is large, at once if it is small. Rethrows what it threw.
class [[nodiscard]] Computation {
 public:
  Computation(Operation& owner, std::size_t bytes, std::function<void()> function)
      : owner_(owner), bytes_(bytes), function_(std::move(function)) {}
  bool await_ready();
  void await_suspend(std::coroutine_handle<> waiter);
  void await_resume() {
    if (exception_) std::rethrow_exception(exception_);
  }

 private:
  void run() noexcept;
  Operation& owner_;
  const std::size_t bytes_;
  std::function<void()> function_;
  std::exception_ptr exception_;
};

/// Lives from its start on the engine's thread until its coroutine has ended and the transport
/// touches none of its buffers any more; then its Work completes. Everything here runs on the
/// engine's thread.
class Operation : public std::enable_shared_from_this<Operation> {
 public:
  using Body = std::function<Task<>(Operation&)>;

  Operation(Engine& engine, std::shared_ptr<Group> group, const Signature& signature,
            std::shared_ptr<WorkState> work, std::chrono::milliseconds timeout, Body body);

  // The ranks that take part: those of the group, but for what narrow() says.
  int rank() const noexcept { return among_.empty() ? group_->rank() : among_rank_; }
  int size() const noexcept {
    return among_.empty() ? group_->size() : static_cast<int>(among_.size());
  }
  /// Group rank and world rank of `rank`.
  int group_rank(int rank) const {
    return among_.empty() ? rank : among_[static_cast<std::size_t>(rank)];
  }
  int world(int rank) const { return group_->world(group_rank(rank)); }
  Group& group() const noexcept { return *group_; }
  const Signature& signature() const noexcept { return signature_; }

  /// What the body does from now on is done among these group ranks alone, this one among them, as
  /// if they were the group; empty: among all again. Messages of different pairs of ranks may have
  /// equal hops.
  void narrow(std::vector<int> ranks);

  /// Starts to send to / receive from a rank of those that take part. `hop` numbers the messages
  /// between two ranks within this operation. Throws the operation's Error if it has failed.
  Transfer send(int to, std::uint64_t hop, ConstBuffer buffer);
  Transfer receive(int from, std::uint64_t hop, Buffer buffer);

  /// Runs `function`, which touches about `bytes`, without holding up the engine if that is much.
  Computation compute(std::size_t bytes, std::function<void()> function) {
    return Computation(*this, bytes, std::move(function));
  }

  /// Host memory that lives as long as the operation.
  std::span<std::byte> scratch(std::size_t bytes) { return scratch_.take(bytes); }

  void set_stage(Stage stage) noexcept;
  Stage stage() const noexcept { return work_->stage(); }

  /// "rank 0, all_reduce #12".
  std::string name() const;

  /// Called with the outcome just before the Work completes; for owners that have more to do.
  std::function<void(const Status&)> on_end;

  /// Called at each change of stage.
  std::function<void(Stage)> on_stage;

  /// What timelines call it, if not by its name.
  std::string trace_label;

 private:
  friend class Engine;
  friend class TransferRequest;
  friend class Transfer;
  friend class Computation;
  friend class ExternalEvent;

  Detached drive();
  void fail(const Status& status);
  void body_ended(const Status& status) noexcept;
  void finish_if_quiet();
  TransferRequest& new_request(int peer, bool receiving);
  void release(TransferRequest& request) noexcept;
  std::string missing_ranks() const;

  Engine& engine_;
  std::shared_ptr<Group> group_;
  std::vector<int> among_;  ///< group ranks; empty: all
  int among_rank_ = 0;
  const Signature signature_;
  std::shared_ptr<WorkState> work_;
  Body body_;
  ScratchArena scratch_;
  transport::Key key_;  ///< with hop 0; set by the engine at the start
  Clock::time_point started_, deadline_;
  Clock::time_point failed_at_{};
  Status cause_;                 ///< first cause, when failed
  bool awaits_verdict_ = false;  ///< a peer seems lost; the job's first cause is being agreed on
  bool body_ended_ = false;
  int outside_ = 0;  ///< computations and events that it awaits: they will resume it
  std::vector<TransferRequest*> in_flight_;
  std::vector<std::pair<Stage, Clock::time_point>> stages_;
};

}  // namespace tersum::runtime
