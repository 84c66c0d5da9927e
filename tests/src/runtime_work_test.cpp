// Work: waiting, callbacks, and handles that outlive what they came from.
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <thread>
#include <vector>

#include "src/support.hpp"

namespace tersum::test {
namespace {

Work start(Communicator& c, float& value) {
  return c.all_reduce(&value, &value, 1, DType::Float32);
}

TEST(Work, AnEmptyHandleRefusesEverything) {
  const Work work;
  EXPECT_FALSE(work.valid());
  EXPECT_EQ(thrown_by([&] { (void)work.done(); }).code(), Code::InvalidState);
  EXPECT_EQ(thrown_by([&] { work.wait(); }).code(), Code::InvalidState);
  EXPECT_EQ(thrown_by([&] { (void)work.wait(std::chrono::seconds(0)); }).code(),
            Code::InvalidState);
  EXPECT_EQ(thrown_by([&] { (void)work.status(); }).code(), Code::InvalidState);
  EXPECT_EQ(thrown_by([&] { (void)work.stage(); }).code(), Code::InvalidState);
  EXPECT_EQ(thrown_by([&] { work.on_complete([](const Status&) {}); }).code(), Code::InvalidState);
}

TEST(Work, RefusesAnEmptyCallbackAtTheCall) {
  World world = make_world(2);
  float values[2] = {1, 2};
  const Work work = start(world[0], values[0]);
  const std::function<void(const Status&)> empty;
  EXPECT_EQ(thrown_by([&] { work.on_complete(nullptr); }).code(), Code::InvalidArgument);
  EXPECT_TRUE(succeeds(start(world[1], values[1])));
  EXPECT_TRUE(succeeds(work));
  EXPECT_EQ(thrown_by([&] { work.on_complete(empty); }).code(), Code::InvalidArgument);
}

TEST(Work, IsPendingUntilTheLastRankHasCome) {
  World world = make_world(2);
  float values[2] = {1, 2};
  const Work work = start(world[0], values[0]);
  EXPECT_TRUE(work.valid());
  EXPECT_FALSE(work.done());
  EXPECT_FALSE(work.wait(std::chrono::milliseconds(1)));
  EXPECT_FALSE(work.wait(std::chrono::nanoseconds(0)));
  EXPECT_FALSE(work.wait(std::chrono::nanoseconds(-1)));
  EXPECT_TRUE(work.status().is_ok());
  EXPECT_NE(work.stage(), Stage::Done);
  EXPECT_TRUE(succeeds(start(world[1], values[1])));
  work.wait();
  EXPECT_TRUE(work.done());
  EXPECT_EQ(work.stage(), Stage::Done);
  EXPECT_TRUE(work.wait(std::chrono::nanoseconds(0)));
  EXPECT_EQ(values[0], 3);
}

TEST(Work, WaitsForeverIfAskedTo) {
  World world = make_world(2);
  float values[2] = {1, 2};
  const Work work = start(world[0], values[0]);
  std::thread waiter([&] { EXPECT_TRUE(work.wait(std::chrono::nanoseconds::max())); });
  EXPECT_TRUE(succeeds(start(world[1], values[1])));
  waiter.join();
}

TEST(Work, ThrowsItsErrorFromEveryWait) {
  World world = make_world(2);
  float value = 1;
  const Work work = start(world[0], value);
  const Work copy = work;
  world[0].abort("stop");
  for (int i = 0; i < 2; ++i) EXPECT_EQ(thrown_by([&] { work.wait(); }).message(), "stop");
  EXPECT_EQ(thrown_by([&] { (void)copy.wait(kHang); }).message(), "stop");
  EXPECT_EQ(work.stage(), Stage::Failed);
  EXPECT_TRUE(work.done());
  EXPECT_EQ(work.status().origin(), "rank 0");  // where it began
}

TEST(Work, OutlivesItsCommunicator) {
  std::vector<Work> works;
  float values[2] = {1, 2};
  {
    World world = make_world(2);
    for (std::size_t r = 0; r < 2; ++r) works.push_back(start(world[r], values[r]));
    for (const Work& work : works) work.wait();
  }
  for (const Work& work : works) {
    EXPECT_TRUE(work.done());
    EXPECT_TRUE(work.status().is_ok());
    int called = 0;
    work.on_complete([&](const Status&) { ++called; });
    EXPECT_EQ(called, 1);
  }
}

TEST(WorkCallbacks, RunOnceWithTheOutcome) {
  World world = make_world(2);
  float values[2] = {1, 2};
  std::atomic<int> calls{0};
  std::promise<Status> first;
  const Work work = start(world[0], values[0]);
  for (int i = 0; i < 3; ++i) work.on_complete([&](const Status&) { ++calls; });
  work.on_complete([&](const Status& status) { first.set_value(status); });
  EXPECT_EQ(calls, 0);
  EXPECT_TRUE(succeeds(start(world[1], values[1])));
  auto future = first.get_future();
  ASSERT_EQ(future.wait_for(kHang), std::future_status::ready);
  EXPECT_TRUE(future.get().is_ok());
  EXPECT_EQ(calls, 3);
  work.on_complete([&](const Status&) { ++calls; });  // late: at once
  EXPECT_EQ(calls, 4);
}

TEST(WorkCallbacks, GetTheErrorOfAFailure) {
  World world = make_world(2);
  float value = 1;
  std::promise<Status> outcome_of;
  const Work work = start(world[0], value);
  work.on_complete([&](const Status& status) { outcome_of.set_value(status); });
  world[0].abort("stop");
  auto future = outcome_of.get_future();
  ASSERT_EQ(future.wait_for(kHang), std::future_status::ready);
  EXPECT_EQ(future.get().code(), Code::Aborted);
}

TEST(WorkCallbacks, FromManyThreadsAreNeverLost) {
  for (int turn = 0; turn < 50; ++turn) {
    World world = make_world(2);
    float values[2] = {1, 2};
    std::atomic<int> calls{0};
    const Work work = start(world[0], values[0]);
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; ++t)
      threads.emplace_back([&] {
        for (int i = 0; i < 20; ++i) work.on_complete([&](const Status&) { ++calls; });
      });
    EXPECT_TRUE(succeeds(start(world[1], values[1])));
    for (auto& thread : threads) thread.join();
    work.wait();
    world.clear();  // joins the engine, which runs what was registered in time
    EXPECT_EQ(calls, 60);
  }
}

TEST(WorkCallbacks, MayDropTheLastHandle) {
  World world = make_world(2);
  float values[2] = {1, 2};
  std::promise<void> called;
  {
    auto holder = std::make_shared<Work>(start(world[0], values[0]));
    holder->on_complete([&called, holder](const Status&) {
      *holder = Work();
      called.set_value();
    });
  }
  EXPECT_TRUE(succeeds(start(world[1], values[1])));
  EXPECT_EQ(called.get_future().wait_for(kHang), std::future_status::ready);
  // The same when it has ended already: the callback runs in this thread.
  auto late = std::make_shared<Work>(start(world[0], values[0]));
  EXPECT_TRUE(succeeds(start(world[1], values[1])));
  late->wait();
  bool ran = false;
  late->on_complete([&ran, late](const Status&) {
    *late = Work();
    ran = true;
  });
  EXPECT_TRUE(ran);
  EXPECT_FALSE(late->valid());
}

TEST(WorkCallbacks, MayStartTheNextCall) {
  World world = make_world(2);
  each_rank(2, [&](int rank) {
    Communicator& c = world[static_cast<std::size_t>(rank)];
    float first = 1, second = 10;
    std::promise<Work> next;
    start(c, first).on_complete([&](const Status&) { next.set_value(start(c, second)); });
    auto future = next.get_future();
    ASSERT_EQ(future.wait_for(kHang), std::future_status::ready);
    EXPECT_TRUE(succeeds(future.get()));
    EXPECT_EQ(second, 20);
  });
}

TEST(WorkCallbacks, MayAbortTheCommunicator) {
  World world = make_world(2);
  float values[3] = {1, 2, 3};
  Communicator& c = world[0];
  std::promise<void> aborted;
  const Work first = start(c, values[0]);
  first.on_complete([&](const Status&) {
    c.abort("from a callback");
    aborted.set_value();
  });
  const Work second = start(c, values[1]);
  EXPECT_TRUE(succeeds(start(world[1], values[2])));
  ASSERT_EQ(aborted.get_future().wait_for(kHang), std::future_status::ready);
  EXPECT_EQ(outcome(second).message(), "from a callback");
}

}  // namespace
}  // namespace tersum::test
