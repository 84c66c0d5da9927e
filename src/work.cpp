#include "tersum/work.hpp"

#include <utility>

#include "src/engine/work_state.hpp"

namespace tersum {

Status WorkState::status() const {
  std::lock_guard lock(mutex_);
  return status_;
}

void WorkState::complete(const Status& status) noexcept {
  std::vector<std::function<void(const Status&)>> callbacks;
  {
    std::lock_guard lock(mutex_);
    if (done_.load(std::memory_order_relaxed)) return;
    status_ = status;
    set_stage(status.is_ok() ? Stage::Done : Stage::Failed);
    done_.store(true, std::memory_order_release);
    callbacks.swap(callbacks_);
    ended_.notify_all();
  }
  for (auto& callback : callbacks) callback(status);
}

bool WorkState::wait_for(std::chrono::nanoseconds timeout) const {
  if (timeout > std::chrono::hours(24 * 365)) {  // now + timeout would overflow
    wait();
    return true;
  }
  std::unique_lock lock(mutex_);
  return ended_.wait_for(lock, timeout, [this] { return done_.load(std::memory_order_relaxed); });
}

void WorkState::wait() const {
  std::unique_lock lock(mutex_);
  ended_.wait(lock, [this] { return done_.load(std::memory_order_relaxed); });
}

void WorkState::on_complete(std::function<void(const Status&)> callback) {
  {
    std::lock_guard lock(mutex_);
    if (!done_.load(std::memory_order_relaxed)) {
      callbacks_.push_back(std::move(callback));
      return;
    }
  }
  callback(status());
}

namespace {
WorkState& checked(const std::shared_ptr<WorkState>& state) {
  if (!state) throw Error(Code::InvalidState, "this Work is empty: it was not returned by a call");
  return *state;
}
}  // namespace

bool Work::done() const {
  return checked(state_).done();
}

void Work::wait() const {
  checked(state_).wait();
  if (Status status = state_->status(); !status.is_ok()) throw Error(status);
}

bool Work::wait(std::chrono::nanoseconds timeout) const {
  if (!checked(state_).wait_for(timeout)) return false;
  if (Status status = state_->status(); !status.is_ok()) throw Error(status);
  return true;
}

Status Work::status() const {
  return checked(state_).status();
}

Stage Work::stage() const {
  return checked(state_).stage();
}

void Work::on_complete(std::function<void(const Status&)> callback) const {
  WorkState& state = checked(state_);
  if (!callback) throw Error(Code::InvalidArgument, "on_complete: the callback is empty");
  state.on_complete(std::move(callback));
}

}  // namespace tersum
