#include "tersum/work.hpp"

#include <utility>

#include "src/device/hold.hpp"
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

bool WorkState::wait_for(std::chrono::nanoseconds timeout) {
  const auto ended = [this] { return done_.load(std::memory_order_relaxed); };
  std::unique_lock lock(mutex_);
  if (timeout <= std::chrono::hours(24 * 365)) return ended_.wait_for(lock, timeout, ended);
  ended_.wait(lock, ended);  // now + timeout would overflow
  return true;
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

void WorkState::wait_on(Stream stream) {
  runtime::hold_until(stream, *this);
}

namespace {
WorkState& checked(const std::shared_ptr<WorkState>& state) {
  if (!state) throw Error(Code::InvalidState, "this Work is empty: it was not returned by a call");
  return *state;
}
}  // namespace

bool Work::done() const {
  return checked(state_).look();
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

void Work::wait_on(Stream stream) const {
  if (!checked(state_).look()) state_->wait_on(stream);
}

Status Work::status() const {
  checked(state_).look();
  return state_->status();
}

Stage Work::stage() const {
  checked(state_).look();
  return state_->stage();
}

void Work::on_complete(std::function<void(const Status&)> callback) const {
  WorkState& state = checked(state_);
  if (!callback) throw Error(Code::InvalidArgument, "on_complete: the callback is empty");
  state.on_complete(std::move(callback));
}

}  // namespace tersum
