// ExternalEvent: what an operation awaits that happens outside the engine, on a GPU say.
#pragma once

#include <coroutine>
#include <utility>

#include "src/engine/operation.hpp"

namespace tersum::runtime {

/// Happens once, well or badly, before or after somebody awaits it. For the engine's thread: who
/// learns of it elsewhere submits a command. It must happen in the end even if the operation fails:
/// the operation cannot end before.
class ExternalEvent {
 public:
  /// Awaiting it returns when it has happened, and throws the Error with which it has. One awaiter
  /// at a time.
  class Awaiter {
   public:
    Awaiter(ExternalEvent& event, Operation& operation) : event_(event), operation_(operation) {}
    bool await_ready() const noexcept { return event_.happened_; }
    void await_suspend(std::coroutine_handle<> waiter) noexcept {
      event_.waiter_ = waiter;
      event_.operation_ = &operation_;
      ++operation_.outside_;
    }
    void await_resume() const {
      if (!event_.status_.is_ok()) throw Error(event_.status_);
    }

   private:
    ExternalEvent& event_;
    Operation& operation_;
  };

  Awaiter in(Operation& operation) noexcept { return {*this, operation}; }

  /// The first time counts.
  void happen(const Status& status = Status::ok()) {
    if (happened_) return;
    happened_ = true;
    status_ = status;
    if (!waiter_) return;
    --std::exchange(operation_, nullptr)->outside_;
    std::exchange(waiter_, nullptr).resume();
  }

 private:
  bool happened_ = false;
  Status status_;
  std::coroutine_handle<> waiter_;
  Operation* operation_ = nullptr;
};

}  // namespace tersum::runtime
