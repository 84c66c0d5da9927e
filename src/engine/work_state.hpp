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

namespace tersum {

/// Completed once, by the engine; read by anyone.
class WorkState {
 public:
  bool done() const noexcept { return done_.load(std::memory_order_acquire); }
  Stage stage() const noexcept { return stage_.load(std::memory_order_relaxed); }
  void set_stage(Stage stage) noexcept { stage_.store(stage, std::memory_order_relaxed); }

  Status status() const;

  /// The first completion counts; later ones are ignored.
  void complete(const Status& status) noexcept;

  /// False if still pending after `timeout`.
  bool wait_for(std::chrono::nanoseconds timeout) const;
  void wait() const;

  void on_complete(std::function<void(const Status&)> callback);

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable ended_;
  std::atomic<bool> done_{false};
  std::atomic<Stage> stage_{Stage::Submitted};
  Status status_;
  std::vector<std::function<void(const Status&)>> callbacks_;
};

}  // namespace tersum
