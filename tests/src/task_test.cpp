#include "src/engine/task.hpp"

#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace tersum::runtime {
namespace {

/// Suspends whoever awaits it, until open().
class Gate {
 public:
  Gate() = default;
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;
  bool await_ready() const noexcept { return open_; }
  void await_suspend(std::coroutine_handle<> waiter) noexcept { waiter_ = waiter; }
  void await_resume() const {
    if (failure_) std::rethrow_exception(failure_);
  }
  void open() {
    open_ = true;
    if (waiter_) std::exchange(waiter_, nullptr).resume();
  }
  void fail(const std::string& message) {
    failure_ = std::make_exception_ptr(std::runtime_error(message));
    open();
  }
  bool waited_for() const noexcept { return waiter_ != nullptr; }

 private:
  bool open_ = false;
  std::coroutine_handle<> waiter_;
  std::exception_ptr failure_;
};

/// Counts its living instances.
struct Counted {
  explicit Counted(int& counter) : count(&counter) { ++*count; }
  Counted(const Counted& other) : count(other.count) { ++*count; }
  Counted& operator=(const Counted&) = delete;
  ~Counted() { --*count; }
  int* count;
};

/// Runs a task to its end or its first suspension; remembers how it ended.
struct Outcome {
  bool ended = false;
  std::string error;
};
Detached run(Task<> task, Outcome& outcome) {
  try {
    co_await task;
  } catch (const std::exception& error) {
    outcome.error = error.what();
  }
  outcome.ended = true;
}

Task<int> constant(int value) {
  co_return value;
}

Task<int> sum_of(int depth) {
  if (depth == 0) co_return 0;
  Task<int> rest = sum_of(depth - 1);
  const int below = co_await rest;
  co_return depth + below;
}

TEST(Task, YieldsTheValueOfItsCoroutine) {
  int got = 0;
  Outcome outcome;
  auto body = [](int& to) -> Task<> {
    Task<int> task = constant(42);
    to = co_await task;
  };
  run(body(got), outcome);
  EXPECT_TRUE(outcome.ended);
  EXPECT_EQ(got, 42);
}

TEST(Task, MovesValuesThatCannotBeCopied) {
  std::unique_ptr<int> got;
  Outcome outcome;
  auto make = []() -> Task<std::unique_ptr<int>> { co_return std::make_unique<int>(7); };
  auto body = [&make](std::unique_ptr<int>& to) -> Task<> {
    auto task = make();
    to = co_await task;
  };
  run(body(got), outcome);
  ASSERT_NE(got, nullptr);
  EXPECT_EQ(*got, 7);
}

TEST(Task, StartsOnlyWhenAwaited) {
  bool started = false;
  auto body = [](bool& flag) -> Task<> {
    flag = true;
    co_return;
  };
  {
    Task<> never = body(started);
    EXPECT_FALSE(started);
  }
  EXPECT_FALSE(started);
  Outcome outcome;
  run(body(started), outcome);
  EXPECT_TRUE(started);
}

TEST(Task, PassesControlDownAndUpDeepChains) {
  int got = 0;
  Outcome outcome;
  auto body = [](int& to) -> Task<> {
    Task<int> task = sum_of(1000);
    to = co_await task;
  };
  run(body(got), outcome);
  EXPECT_EQ(got, 1000 * 1001 / 2);
}

Task<> wait_at(Gate& gate, int depth, int& unwound, int& living) {
  const Counted local(living);
  struct OnUnwind {
    int& counter;
    ~OnUnwind() { ++counter; }
  } on_unwind{unwound};
  if (depth == 0) {
    co_await gate;
  } else {
    Task<> deeper = wait_at(gate, depth - 1, unwound, living);
    co_await deeper;
  }
}

TEST(Task, ResumesFromTheInnermostSuspension) {
  Gate gate;
  int unwound = 0, living = 0;
  Outcome outcome;
  run(wait_at(gate, 5, unwound, living), outcome);
  EXPECT_FALSE(outcome.ended);
  EXPECT_TRUE(gate.waited_for());
  EXPECT_EQ(living, 6);
  gate.open();
  EXPECT_TRUE(outcome.ended);
  EXPECT_EQ(outcome.error, "");
  EXPECT_EQ(unwound, 6);
  EXPECT_EQ(living, 0);
}

TEST(Task, CarriesExceptionsThroughAllLevels) {
  Gate gate;
  int unwound = 0, living = 0;
  Outcome outcome;
  run(wait_at(gate, 5, unwound, living), outcome);
  gate.fail("the peer is gone");
  EXPECT_TRUE(outcome.ended);
  EXPECT_EQ(outcome.error, "the peer is gone");
  EXPECT_EQ(unwound, 6);
  EXPECT_EQ(living, 0);
}

TEST(Task, LetsALevelCatchWhatALowerOneThrows) {
  std::vector<std::string> log;
  auto thrower = []() -> Task<int> {
    throw std::runtime_error("low");
    co_return 1;
  };
  auto middle = [&](std::vector<std::string>& to) -> Task<int> {
    int value = -1;
    try {
      Task<int> task = thrower();
      value = co_await task;
    } catch (const std::runtime_error& error) {
      to.push_back(error.what());
    }
    co_return value;
  };
  auto body = [&](std::vector<std::string>& to) -> Task<> {
    Task<int> task = middle(to);
    const int value = co_await task;
    to.push_back(std::to_string(value));
    throw std::logic_error("high");
  };
  Outcome outcome;
  run(body(log), outcome);
  EXPECT_EQ(log, (std::vector<std::string>{"low", "-1"}));
  EXPECT_EQ(outcome.error, "high");
}

/// Owns a coroutine without running it to its end, so that its frame can be destroyed anywhere.
struct Owned {
  struct promise_type {
    Owned get_return_object() { return {std::coroutine_handle<promise_type>::from_promise(*this)}; }
    std::suspend_never initial_suspend() const noexcept { return {}; }
    std::suspend_always final_suspend() const noexcept { return {}; }
    void return_void() const noexcept {}
    void unhandled_exception() const noexcept { std::terminate(); }
  };
  std::coroutine_handle<promise_type> handle;
};

TEST(Task, DestroyingASuspendedChainDestroysAllItsFrames) {
  Gate gate;
  int unwound = 0, living = 0;
  auto root = [](Gate& at, int& a, int& b) -> Owned {
    Task<> task = wait_at(at, 3, a, b);
    co_await task;
  }(gate, unwound, living);
  EXPECT_EQ(living, 4);
  root.handle.destroy();
  EXPECT_EQ(unwound, 4);
  EXPECT_EQ(living, 0);
}

TEST(Task, DestroysArgumentsOfATaskThatNeverStarted) {
  int living = 0;
  auto body = [](Counted) -> Task<> { co_return; };
  {
    Task<> never = body(Counted(living));
    EXPECT_EQ(living, 1);
  }
  EXPECT_EQ(living, 0);
}

TEST(Task, MovingHandsTheFrameOver) {
  int living = 0;
  auto body = [](Counted) -> Task<> { co_return; };
  Task<> first = body(Counted(living));
  {
    Task<> second = std::move(first);
    EXPECT_EQ(living, 1);
  }
  EXPECT_EQ(living, 0);
}

// What g++ 12 gets wrong when such objects are temporaries inside a co_await expression. Named
// first, they live exactly once; the address sanitizer watches.

struct Aggregate {
  std::array<std::uint64_t, 4> words;
  std::shared_ptr<int> owner;
};

Task<int> consume(Aggregate aggregate, Gate& gate) {
  co_await gate;
  co_return static_cast<int>(aggregate.words[3]) + *aggregate.owner;
}

TEST(Task, NamedAggregatesSurviveASuspension) {
  Gate gate;
  Outcome outcome;
  int got = 0;
  auto owner = std::make_shared<int>(5);
  auto body = [](Gate& at, std::shared_ptr<int> shared, int& to) -> Task<> {
    const Aggregate aggregate{{1, 2, 3, 4}, std::move(shared)};
    Task<int> task = consume(aggregate, at);
    to = co_await task;
  };
  run(body(gate, owner, got), outcome);
  EXPECT_GT(owner.use_count(), 1);
  gate.open();
  EXPECT_EQ(got, 9);
  EXPECT_EQ(owner.use_count(), 1);
}

/// As Operation::compute(): an awaitable that keeps a function and calls it later.
class Later {
 public:
  Later(Gate& gate, std::function<void()> function) : gate_(gate), function_(std::move(function)) {}
  bool await_ready() const noexcept { return false; }
  void await_suspend(std::coroutine_handle<> waiter) noexcept { gate_.await_suspend(waiter); }
  void await_resume() { function_(); }

 private:
  Gate& gate_;
  std::function<void()> function_;
};

TEST(Task, NamedLambdasWithCapturesSurviveASuspension) {
  Gate gate;
  Outcome outcome;
  std::string got;
  auto owner = std::make_shared<int>(3);
  auto body = [](Gate& at, std::shared_ptr<int> shared, std::string& to) -> Task<> {
    const std::string long_text(100, 'x');
    auto later =
        Later(at, [&to, shared, text = long_text] { to = text + std::to_string(*shared); });
    co_await later;
  };
  run(body(gate, owner, got), outcome);
  EXPECT_EQ(got, "");
  gate.open();
  EXPECT_EQ(got, std::string(100, 'x').append(1, '3'));
  EXPECT_EQ(owner.use_count(), 1);
}

TEST(Task, EveryTransferOfAVectorCanBeAwaited) {
  Outcome outcome;
  std::vector<std::unique_ptr<Gate>> gates;
  for (int i = 0; i < 5; ++i) gates.push_back(std::make_unique<Gate>());
  int passed = 0;
  auto body = [](std::vector<std::unique_ptr<Gate>>& all, int& count) -> Task<> {
    for (auto& gate : all) {
      Gate& next = *gate;
      co_await next;
      ++count;
    }
  };
  run(body(gates, passed), outcome);
  for (std::size_t i : {std::size_t{2}, std::size_t{0}}) gates[i]->open();
  EXPECT_EQ(passed, 1);
  gates[1]->open();
  EXPECT_EQ(passed, 3);
  gates[4]->open();
  gates[3]->open();
  EXPECT_EQ(passed, 5);
  EXPECT_TRUE(outcome.ended);
}

}  // namespace
}  // namespace tersum::runtime
