// What takes its time: thousands of worlds, and a world that does nothing.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <condition_variable>
#include <filesystem>
#include <mutex>
#include <thread>

#include "src/support.hpp"

namespace tersum::test {
namespace {

std::size_t entries(const char* folder) {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder)) ++count;
  return count;
}
std::size_t threads() {
  return entries("/proc/self/task");
}
std::size_t descriptors() {
  return entries("/proc/self/fd");
}

/// A joined thread's entry can linger for a moment: polls until there are at most `limit`.
bool threads_settle_at(std::size_t limit) {
  const auto end = std::chrono::steady_clock::now() + kHang;
  while (threads() > limit) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::yield();
  }
  return true;
}

void live_and_die() {
  World world = make_world(2);
  float values[2] = {1, 2};
  Work works[2];
  for (std::size_t r = 0; r < 2; ++r)
    works[r] = world[r].all_reduce(&values[r], &values[r], 1, DType::Float32);
  for (const Work& work : works) ASSERT_TRUE(succeeds(work));
  ASSERT_EQ(values[0], 3);
}

TEST(Lifetime, AThousandWorldsLeaveNothingBehind) {
  for (int i = 0; i < 10; ++i) live_and_die();
  const std::size_t threads_before = threads(), descriptors_before = descriptors();
  for (int i = 0; i < 1000; ++i) {
    live_and_die();
    if (HasFatalFailure()) return;
  }
  EXPECT_TRUE(threads_settle_at(threads_before)) << threads() << " threads";
  EXPECT_EQ(descriptors(), descriptors_before);
}

TEST(Lifetime, TheLastHandleMayGoInACallback) {
  for (int i = 0; i < 10; ++i) live_and_die();
  const std::size_t threads_before = threads(), descriptors_before = descriptors();
  for (int turn = 0; turn < 20; ++turn) {
    World world = make_world(2);
    float values[2] = {1, 2};
    auto last = std::make_shared<Communicator>(std::move(world[0]));
    std::mutex mutex;
    std::condition_variable gone_changed;
    bool gone = false;
    const Work work = last->all_reduce(&values[0], &values[0], 1, DType::Float32);
    work.on_complete([&, last](const Status&) mutable {
      *last = Communicator();
      std::lock_guard lock(mutex);
      gone = true;
      gone_changed.notify_all();
    });
    EXPECT_TRUE(succeeds(world[1].all_reduce(&values[1], &values[1], 1, DType::Float32)));
    std::unique_lock lock(mutex);
    ASSERT_TRUE(gone_changed.wait_for(lock, kHang, [&] { return gone; }));
  }
  EXPECT_TRUE(threads_settle_at(threads_before)) << threads() << " threads";
  EXPECT_EQ(descriptors(), descriptors_before);
}

TEST(Idle, AWorldThatDoesNothingUsesNoProcessor) {
  World world = make_world(4);
  each_rank(4, [&](int rank) {
    float one = 1;
    EXPECT_TRUE(
        succeeds(world[static_cast<std::size_t>(rank)].all_reduce(&one, &one, 1, DType::Float32)));
  });
  const auto used = [] {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    const auto microseconds = [](const timeval& t) {
      return std::chrono::seconds(t.tv_sec) + std::chrono::microseconds(t.tv_usec);
    };
    return microseconds(usage.ru_utime) + microseconds(usage.ru_stime);
  };
  std::mutex mutex;
  std::condition_variable never;
  std::unique_lock lock(mutex);
  const auto before = used();
  const auto begin = std::chrono::steady_clock::now();
  never.wait_until(lock, begin + std::chrono::seconds(1), [] { return false; });
  const auto idle = std::chrono::steady_clock::now() - begin;
  EXPECT_LT(used() - before, idle / 20);
}

}  // namespace
}  // namespace tersum::test
