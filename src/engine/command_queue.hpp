// The way into the engine from any thread: a lock-free queue of commands, many producers, one
// consumer.
#pragma once

#include <atomic>
#include <memory>
#include <type_traits>
#include <utility>

namespace tersum::runtime {

/// Something for the engine's thread to do. Runs once; must not throw.
class Command {
 public:
  virtual ~Command() = default;
  virtual void run() noexcept = 0;

 private:
  friend class CommandQueue;
  Command* next_ = nullptr;
};

template <class Function>
std::unique_ptr<Command> make_command(Function function) {
  struct Holder final : Command {
    explicit Holder(Function f) : function(std::move(f)) {}
    void run() noexcept override { function(); }
    Function function;
  };
  return std::make_unique<Holder>(std::move(function));
}

/// Commands of one thread run in the order in which it pushed them.
class CommandQueue {
 public:
  ~CommandQueue() {
    for (Command* command = take_all(); command != nullptr;)
      delete std::exchange(command, command->next_);
  }

  void push(std::unique_ptr<Command> command) noexcept {
    Command* node = command.release();
    node->next_ = head_.load(std::memory_order_relaxed);
    while (!head_.compare_exchange_weak(node->next_, node, std::memory_order_seq_cst,
                                        std::memory_order_relaxed)) {
    }
  }

  bool empty() const noexcept { return head_.load(std::memory_order_seq_cst) == nullptr; }

  /// Runs what has been pushed so far. True if there was anything.
  bool run_all() noexcept {
    Command* command = take_all();
    const bool any = command != nullptr;
    while (command != nullptr) {
      std::unique_ptr<Command> current(std::exchange(command, command->next_));
      current->run();
    }
    return any;
  }

 private:
  /// The list, oldest first.
  Command* take_all() noexcept {
    Command* newest = head_.exchange(nullptr, std::memory_order_acquire);
    Command* oldest = nullptr;
    while (newest != nullptr) {
      Command* next = newest->next_;
      newest->next_ = oldest;
      oldest = newest;
      newest = next;
    }
    return oldest;
  }

  std::atomic<Command*> head_{nullptr};
};

}  // namespace tersum::runtime
