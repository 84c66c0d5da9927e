// The faults of a FaultPlan happen, and nothing else does.
#include "transport/faulty_transport.hpp"

#include <algorithm>

#include "transport/loopback_transport.hpp"
#include "transport/support.hpp"

namespace tersum::transport::testing {
namespace {

/// Rank 0 misbehaves by plan, the others work.
Factory faulty(const FaultPlan& plan) {
  return {"faulty", [plan](int ranks) {
            auto hub = std::make_shared<LoopbackHub>(ranks);
            std::vector<std::unique_ptr<Transport>> made;
            for (int r = 0; r < ranks; ++r) made.push_back(make_loopback_transport(hub, r));
            made[0] = make_faulty_transport(std::move(made[0]), plan);
            return made;
          }};
}

/// Operations of the messages that rank 1 saw, in order.
std::vector<std::uint64_t> seen(Job& job) {
  std::vector<std::uint64_t> operations;
  for (const auto& arrival : job.listener(1).arrivals) {
    operations.push_back(arrival.envelope.key.operation);
  }
  return operations;
}

std::vector<std::uint64_t> run(const FaultPlan& plan, std::size_t messages) {
  std::vector<TestRequest> sends(messages);
  Job job(faulty(plan), 2);
  job.listener(1).verdict = [](int, const Envelope&) { return Listener::Verdict::Drop; };
  for (std::size_t i = 0; i < messages; ++i) job[0].post_send(1, envelope(i), {}, sends[i]);
  EXPECT_TRUE(job.pump([&] { return job.listener(1).arrivals.size() == messages; }));
  job.settle();
  for (const TestRequest& send : sends) EXPECT_EQ(send.calls, 1);
  return seen(job);
}

std::vector<std::uint64_t> in_order(std::size_t count) {
  std::vector<std::uint64_t> order(count);
  for (std::size_t i = 0; i < count; ++i) order[i] = i;
  return order;
}

TEST(Faulty, DelaysWithoutReorderKeepTheOrder) {
  FaultPlan plan;
  plan.max_delay = 20;
  EXPECT_EQ(run(plan, 50), in_order(50));
}

TEST(Faulty, ReordersDifferentKeysAndRepeatsByItsSeed) {
  FaultPlan plan;
  plan.max_delay = 20;
  plan.reorder = true;
  const auto first = run(plan, 50);
  EXPECT_NE(first, in_order(50));
  EXPECT_EQ(run(plan, 50), first);
  plan.seed = 2;
  EXPECT_NE(run(plan, 50), first);
}

TEST(Faulty, HoldsMessagesBackAndDoesNotSleepOnThem) {
  FaultPlan plan;
  plan.max_delay = 50;
  plan.seed = 3;
  TestRequest sends[10];
  Job job(faulty(plan), 2);
  for (auto& send : sends) job[0].post_send(1, envelope(1), {}, send);
  job[0].progress();
  job[1].progress();
  EXPECT_LT(job.listener(1).arrivals.size(), 10u);
  EXPECT_FALSE(job[0].arm());
  job[0].cancel(sends[9]);
  ASSERT_TRUE(job.pump([&] { return sends[9].done(); }));
  EXPECT_EQ(sends[9].status.code(), Code::Aborted);
  ASSERT_TRUE(job.pump([&] { return job.listener(1).arrivals.size() == 9; }));
  job.settle();
  EXPECT_EQ(job.listener(1).arrivals.size(), 9u) << "the cancelled one never left";
}

TEST(Faulty, DropsTheMessageOfThePlanOnly) {
  FaultPlan plan;
  plan.drops = {{1, 3}};
  TestRequest sends[5];
  Job job(faulty(plan), 3);
  const auto drop = [](int, const Envelope&) { return Listener::Verdict::Drop; };
  job.listener(1).verdict = drop;
  job.listener(2).verdict = drop;
  TestRequest others[5];
  for (std::uint64_t i = 0; i < 5; ++i) {
    job[0].post_send(1, envelope(i), {}, sends[i]);
    job[0].post_send(2, envelope(i), {}, others[i]);
  }
  ASSERT_TRUE(job.pump([&] {
    return std::all_of(sends, sends + 5, [](const auto& s) { return s.done(); }) &&
           std::all_of(others, others + 5, [](const auto& s) { return s.done(); });
  }));
  EXPECT_TRUE(sends[2].status.is_ok()) << "its sender does not know";
  EXPECT_EQ(seen(job), (std::vector<std::uint64_t>{0, 1, 3, 4}));
  EXPECT_EQ(job.listener(2).arrivals.size(), 5u);
}

TEST(Faulty, FallsSilentAtTheMessageOfThePlan) {
  FaultPlan plan;
  plan.silent_from = 3;
  std::vector<std::byte> into(10);
  TestRequest sends[4], towards, receive, cancelled;
  Job job(faulty(plan), 2);
  job.listener(1).verdict = [](int, const Envelope&) { return Listener::Verdict::Drop; };
  for (std::uint64_t i = 0; i < 4; ++i) job[0].post_send(1, envelope(i), {}, sends[i]);
  job[0].post_receive(1, envelope(9).key, room(into), receive);
  job[0].post_receive(1, envelope(10).key, room(into), cancelled);
  job[1].post_send(0, envelope(9), {}, towards);
  ASSERT_TRUE(job.pump([&] { return sends[0].done() && sends[1].done(); }));
  job.settle();
  EXPECT_EQ(seen(job), (std::vector<std::uint64_t>{0, 1}));
  EXPECT_TRUE(job.listener(0).arrivals.empty());
  EXPECT_FALSE(sends[2].done() || sends[3].done() || receive.done());
  EXPECT_TRUE(job.listener(1).failures.empty()) << "nobody is told";
  job[0].cancel(cancelled);
  job[0].cancel(sends[3]);
  ASSERT_TRUE(job.pump([&] { return cancelled.done() && sends[3].done(); }));
  job[0].close(std::chrono::milliseconds(0));
  EXPECT_EQ(sends[2].status.code(), Code::Aborted);
  EXPECT_EQ(receive.status.code(), Code::Aborted);
}

TEST(Faulty, BreaksWithAPeerAtTheCallOfThePlan) {
  FaultPlan plan;
  plan.max_delay = 1000;
  plan.failures = {{1, 5}};
  std::vector<std::byte> into(10);
  TestRequest send, receive, good;
  Job job(faulty(plan), 3);
  job[0].post_send(1, envelope(1), {}, send);
  job[0].post_receive(1, envelope(1).key, room(into), receive);
  job[0].post_receive(2, envelope(1).key, room(into), good);
  for (int i = 0; i < 4; ++i) job[0].progress();
  EXPECT_TRUE(job.listener(0).failures.empty());
  EXPECT_FALSE(job[0].arm()) << "a fault is still to come";
  job[0].progress();
  ASSERT_EQ(job.listener(0).failures.size(), 1u);
  EXPECT_EQ(job.listener(0).failures[0].first, 1);
  ASSERT_TRUE(job.pump([&] { return send.done() && receive.done(); }));
  EXPECT_EQ(send.status.code(), Code::PeerLost);
  EXPECT_EQ(receive.status.rank(), 1);
  TestRequest answer;
  job[2].post_send(0, envelope(1), {}, answer);
  ASSERT_TRUE(job.pump([&] { return good.done() && answer.done(); }));
  EXPECT_TRUE(good.status.is_ok());
  EXPECT_EQ(job.listener(0).failures.size(), 1u);
}

}  // namespace
}  // namespace tersum::transport::testing
