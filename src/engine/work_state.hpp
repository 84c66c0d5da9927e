// The shared state behind Work.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <vector>

#include "tersum/error.hpp"
#include "tersum/stage.hpp"
#include "tersum/types.hpp"

namespace tersum {

/// Completed once, by the engine; read by anyone. Work on a device completes itself when somebody
/// looks.
class WorkState {
 public:
  WorkState() = default;
  virtual ~WorkState() = default;
  WorkState(const WorkState&) = delete;
  WorkState& operator=(const WorkState&) = delete;

  bool done() const noexcept { return done_.load(std::memory_order_acquire); }
  Stage stage() const noexcept { return stage_.load(std::memory_order_relaxed); }
  void set_stage(Stage stage) noexcept { stage_.store(stage, std::memory_order_relaxed); }

  /// Completes it if nobody else will and its end has come. Returns done(). Any thread.
  virtual bool look() noexcept { return done(); }

  Status status() const;

  /// The first completion counts; later ones are ignored.
  void complete(const Status& status) noexcept;

  /// False if still pending after `timeout`.
  virtual bool wait_for(std::chrono::nanoseconds timeout);
  /// Until it is done. Error Timeout if it never will be.
  virtual void wait() { wait_for(std::chrono::nanoseconds::max()); }

  virtual void on_complete(std::function<void(const Status&)> callback);

  /// See Work::wait_on(). For work that is not done yet.
  virtual void wait_on(Stream stream);

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable ended_;
  std::atomic<bool> done_{false};
  std::atomic<Stage> stage_{Stage::Submitted};
  Status status_;
  std::vector<std::function<void(const Status&)>> callbacks_;
};

}  // namespace tersum
