// Turns of slices, and operations that work among some ranks of their group for a while. No GPU.
#include "src/device/turns.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "src/collectives/collectives.hpp"
#include "src/support.hpp"

namespace tersum::test {
namespace {

using runtime::Operation;
using runtime::Task;
using runtime::Turns;

Work start(Communicator& communicator, Operation::Body body) {
  auto& engine = communicator.state()->session->engine();
  runtime::Signature signature;
  signature.kind = runtime::CallKind::DeviceSetup;
  auto state = std::make_shared<WorkState>();
  auto operation = std::make_shared<Operation>(engine, communicator.state()->group, signature,
                                               state, kHang, std::move(body));
  engine.submit(runtime::make_command(
      [&engine, operation]() mutable { engine.start(std::move(operation)); }));
  return Work(std::move(state));
}

/// Lets the others go first for a while, on the pool.
Task<> pause(Operation& op, std::chrono::microseconds time) {
  auto sleep = op.compute(std::size_t{1} << 20, [time] { std::this_thread::sleep_for(time); });
  co_await sleep;
}

std::vector<std::chrono::microseconds> pauses(int rank, int count) {
  std::mt19937 random(static_cast<unsigned>(rank) + 3);
  std::vector<std::chrono::microseconds> times;
  for (int i = 0; i < count; ++i) times.emplace_back(random() % 300);
  return times;
}

/// One rank's side of operations that ask for turns, each after a pause of its own.
struct Side {
  Turns turns;
  std::vector<int> order;  ///< in which operations had their turns here

  Task<> run(Operation& op, int number, std::chrono::microseconds time) {
    Task<> waiting = pause(op, time);
    co_await waiting;
    Task<> turn = turns.take(op);
    co_await turn;
    order.push_back(number);
    turns.pass();
  }
};

TEST(Turns, ComeInOneOrderOnAllRanks) {
  constexpr int kRanks = 4, kOperations = 60;
  World world = make_world(kRanks);
  std::vector<Side> sides(kRanks);
  each_rank(kRanks, [&](int rank) {
    const auto r = static_cast<std::size_t>(rank);
    const auto times = pauses(rank, kOperations);
    std::vector<Work> works;
    for (int i = 0; i < kOperations; ++i)
      works.push_back(
          start(world[r], [&side = sides[r], i, time = times[static_cast<std::size_t>(i)]](
                              Operation& op) { return side.run(op, i, time); }));
    for (const Work& work : works) EXPECT_TRUE(succeeds(work));
  });
  for (const Side& side : sides) EXPECT_EQ(side.order, sides[0].order);
  auto sorted = sides[0].order;
  std::ranges::sort(sorted);
  std::vector<int> all(kOperations);
  std::iota(all.begin(), all.end(), 0);
  EXPECT_EQ(sorted, all);
}

TEST(Turns, EndWhenTheyAreAborted) {
  World world = make_world(1);
  Turns turns;
  const auto take = [&](Operation& op) { return turns.take(op); };
  const auto on_engine = [&](const std::function<void()>& function) {
    world[0].state()->session->run_on_engine(function);
  };
  EXPECT_TRUE(succeeds(start(world[0], take)));  // and keeps its turn
  const Work waiting = start(world[0], take);
  on_engine([] {});  // it has begun
  EXPECT_FALSE(waiting.done());
  on_engine([&] { turns.abort(); });
  EXPECT_EQ(outcome(waiting).code(), Code::Aborted);
  EXPECT_EQ(outcome(start(world[0], take)).code(), Code::Aborted);
  on_engine([&] { turns.reset(); });
  EXPECT_TRUE(succeeds(start(world[0], take)));
}

/// Two turns among the ranks of one host, a sum over counterparts between them, and one over all.
struct Steps {
  Turns turns;
  std::vector<int> host, counterparts;
  float value = 0, over_hosts = 0, over_all = 0;

  Task<> run(Operation& op) {
    op.narrow(host);
    Task<> first = turns.take(op, 0);
    co_await first;
    turns.pass();
    op.narrow(counterparts);
    runtime::Reduction call{&value, &over_hosts, 1};
    Task<> sum = runtime::all_reduce(op, call, runtime::Algorithm::Direct);
    co_await sum;
    op.narrow(host);
    Task<> second = turns.take(op, 1);
    co_await second;
    turns.pass();
    op.narrow({});
    runtime::Reduction total{&value, &over_all, 1};
    Task<> all = runtime::all_reduce(op, total, runtime::Algorithm::Ring);
    co_await all;
  }
};

TEST(Operations, WorkAmongSomeOfTheirRanks) {
  constexpr int kRanks = 6, kHosts = 3;
  World world = make_world(kRanks);
  for (int repeat = 0; repeat < 20; ++repeat)
    each_rank(kRanks, [&](int rank) {
      Steps steps;
      for (int other = 0; other < kRanks; ++other) {
        if (other % kHosts == rank % kHosts) steps.host.push_back(other);
        if (other / kHosts == rank / kHosts) steps.counterparts.push_back(other);
      }
      steps.value = static_cast<float>(1 << rank);
      EXPECT_TRUE(succeeds(start(world[static_cast<std::size_t>(rank)],
                                 [&](Operation& op) { return steps.run(op); })));
      EXPECT_EQ(steps.over_hosts, rank < kHosts ? 7 : 56);
      EXPECT_EQ(steps.over_all, 63);
    });
}

}  // namespace
}  // namespace tersum::test
