#include "scheduler/scheduler.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "tersum/error.hpp"

namespace tersum::scheduler {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr Time kNow{0};

SchedulerOptions with_credit(std::size_t credit_bytes, Policy policy = Policy::Priority) {
  SchedulerOptions options;
  options.credit_bytes = credit_bytes;
  options.policy = policy;
  return options;
}

/// Everything that may start now, in order.
std::vector<SliceId> grants(Scheduler& scheduler) {
  std::vector<SliceId> slices;
  while (const auto grant = scheduler.next(kNow)) slices.push_back(grant->slice);
  return slices;
}

void expect_error(Code code, const std::string& text, const std::function<void()>& call) {
  try {
    call();
    FAIL() << "expected an error with '" << text << "'";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code);
    EXPECT_THAT(error.what(), HasSubstr(text));
  }
}

TEST(Scheduler, GrantsMostUrgentFirst) {
  Scheduler scheduler(with_credit(1000));
  scheduler.on_ready(1, 5, 10, kNow);
  scheduler.on_ready(2, 0, 10, kNow);
  scheduler.on_ready(3, 5, 10, kNow);
  scheduler.on_ready(4, 2, 10, kNow);
  EXPECT_EQ(scheduler.waiting_count(), 4u);
  EXPECT_THAT(grants(scheduler), ElementsAre(2, 4, 1, 3));
  EXPECT_EQ(scheduler.waiting_count(), 0u);
  EXPECT_EQ(scheduler.in_flight_bytes(), 40u);
}

TEST(Scheduler, FifoIgnoresPriority) {
  Scheduler scheduler(with_credit(1000, Policy::Fifo));
  scheduler.on_ready(1, 5, 10, kNow);
  scheduler.on_ready(2, 0, 10, kNow);
  scheduler.on_ready(3, 9, 10, kNow);
  EXPECT_THAT(grants(scheduler), ElementsAre(1, 2, 3));
}

TEST(Scheduler, StopsWhenTheCreditIsSpentAndGoesOnWhenItReturns) {
  Scheduler scheduler(with_credit(20));
  for (SliceId slice = 0; slice < 4; ++slice) scheduler.on_ready(slice, 0, 10, kNow);
  EXPECT_THAT(grants(scheduler), ElementsAre(0, 1));
  EXPECT_THAT(grants(scheduler), IsEmpty());
  scheduler.on_done(1);
  EXPECT_EQ(scheduler.in_flight_bytes(), 10u);
  EXPECT_THAT(grants(scheduler), ElementsAre(2));
}

TEST(Scheduler, GrantsALargeSliceWhileAnyCreditIsLeft) {
  Scheduler scheduler(with_credit(20));
  scheduler.on_ready(0, 0, 19, kNow);
  scheduler.on_ready(1, 1, 1000, kNow);
  scheduler.on_ready(2, 2, 1, kNow);
  EXPECT_THAT(grants(scheduler), ElementsAre(0, 1));
  EXPECT_EQ(scheduler.in_flight_bytes(), 1019u);
  scheduler.on_done(0);
  EXPECT_THAT(grants(scheduler), IsEmpty());
  scheduler.on_done(1);
  EXPECT_THAT(grants(scheduler), ElementsAre(2));
}

TEST(Scheduler, GrantsSlicesOfNoBytes) {
  Scheduler scheduler(with_credit(1));
  scheduler.on_ready(0, 0, 0, kNow);
  scheduler.on_ready(1, 0, 0, kNow);
  EXPECT_THAT(grants(scheduler), ElementsAre(0, 1));
  scheduler.on_done(0);
  scheduler.on_done(1);
  EXPECT_EQ(scheduler.in_flight_bytes(), 0u);
}

TEST(Scheduler, AdmitsASliceThatAPeerHasStartedBeyondTheCredit) {
  Scheduler scheduler(with_credit(10));
  scheduler.on_ready(0, 0, 10, kNow);
  scheduler.on_ready(1, 1, 10, kNow);
  scheduler.on_ready(2, 2, 10, kNow);
  const auto first = scheduler.next(kNow);
  ASSERT_TRUE(first);
  EXPECT_FALSE(first->overdrawn);
  EXPECT_FALSE(scheduler.next(kNow));
  scheduler.on_arrival(2);
  const auto second = scheduler.next(kNow);
  ASSERT_TRUE(second);
  EXPECT_EQ(second->slice, 2u);
  EXPECT_TRUE(second->overdrawn);
  EXPECT_EQ(scheduler.in_flight_bytes(), 20u);
  EXPECT_FALSE(scheduler.next(kNow));
}

TEST(Scheduler, AdmitsTheMostUrgentArrivalFirst) {
  Scheduler scheduler(with_credit(10));
  scheduler.on_ready(0, 0, 10, kNow);
  ASSERT_THAT(grants(scheduler), ElementsAre(0));
  for (const SliceId slice : {7, 5, 6}) {
    scheduler.on_ready(slice, static_cast<int>(slice), 10, kNow);
    scheduler.on_arrival(slice);
  }
  EXPECT_THAT(grants(scheduler), ElementsAre(5, 6, 7));
}

TEST(Scheduler, RemembersAnArrivalUntilTheSliceIsReady) {
  Scheduler scheduler(with_credit(10));
  scheduler.on_arrival(1);
  EXPECT_THAT(grants(scheduler), IsEmpty());
  EXPECT_EQ(scheduler.waiting_count(), 0u);
  scheduler.on_ready(0, 0, 10, kNow);
  scheduler.on_ready(1, 1, 10, kNow);
  scheduler.on_ready(2, 1, 10, kNow);
  EXPECT_THAT(grants(scheduler), ElementsAre(0, 1));
}

TEST(Scheduler, UsesCreditBeforeItOverdraws) {
  Scheduler scheduler(with_credit(10));
  scheduler.on_ready(0, 3, 10, kNow);
  scheduler.on_arrival(0);
  const auto grant = scheduler.next(kNow);
  ASSERT_TRUE(grant);
  EXPECT_FALSE(grant->overdrawn);
}

TEST(Scheduler, IgnoresRepeatedAndLateArrivals) {
  Scheduler scheduler(with_credit(10));
  scheduler.on_ready(0, 0, 10, kNow);
  scheduler.on_arrival(0);
  scheduler.on_arrival(0);
  EXPECT_THAT(grants(scheduler), ElementsAre(0));
  scheduler.on_arrival(0);  // in flight: this round's
  scheduler.on_done(0);
  scheduler.on_ready(1, 0, 10, kNow);
  scheduler.on_ready(0, 0, 10, kNow);
  EXPECT_THAT(grants(scheduler), ElementsAre(1)) << "a late arrival leaked into the next round";
}

TEST(Scheduler, AnArrivalCountsForOneRoundOnly) {
  Scheduler scheduler(with_credit(10));
  for (int round = 0; round < 3; ++round) {
    scheduler.on_ready(9, 0, 10, kNow);
    ASSERT_THAT(grants(scheduler), ElementsAre(9));
    scheduler.on_ready(1, 1, 10, kNow);
    EXPECT_THAT(grants(scheduler), IsEmpty()) << "round " << round;
    scheduler.on_arrival(1);
    EXPECT_THAT(grants(scheduler), ElementsAre(1));
    scheduler.on_done(1);
    scheduler.on_done(9);
  }
}

TEST(Scheduler, BoundsOvertakingUnderASteadyStreamOfUrgentSlices) {
  SchedulerOptions options = with_credit(1);
  options.overtakes = 3;
  Scheduler scheduler(options);
  scheduler.on_ready(1000, 9, 1, kNow);
  scheduler.on_ready(1001, 9, 1, kNow);
  std::vector<SliceId> order;
  for (SliceId slice = 0; slice < 6; ++slice) {
    scheduler.on_ready(slice, 0, 1, kNow);
    const auto grant = scheduler.next(kNow);
    ASSERT_TRUE(grant);
    order.push_back(grant->slice);
    scheduler.on_done(grant->slice);
  }
  EXPECT_THAT(order, ElementsAre(0, 1, 2, 1000, 1001, 3));
}

TEST(Scheduler, WithoutOvertakesIsFifo) {
  SchedulerOptions options = with_credit(100);
  options.overtakes = 0;
  Scheduler scheduler(options);
  scheduler.on_ready(1, 5, 1, kNow);
  scheduler.on_ready(2, 0, 1, kNow);
  scheduler.on_ready(3, 2, 1, kNow);
  EXPECT_THAT(grants(scheduler), ElementsAre(1, 2, 3));
}

TEST(Scheduler, RefusesMisuseAndNamesTheSlice) {
  Scheduler scheduler(with_credit(10));
  expect_error(Code::InvalidState, "slice 4", [&] { scheduler.on_done(4); });
  scheduler.on_arrival(4);
  expect_error(Code::InvalidState, "slice 4", [&] { scheduler.on_done(4); });
  scheduler.on_ready(4, 0, 10, kNow);
  expect_error(Code::InvalidState, "waiting", [&] { scheduler.on_ready(4, 0, 10, kNow); });
  expect_error(Code::InvalidState, "slice 4", [&] { scheduler.on_done(4); });
  ASSERT_THAT(grants(scheduler), ElementsAre(4));
  expect_error(Code::InvalidState, "in flight", [&] { scheduler.on_ready(4, 0, 10, kNow); });
  scheduler.on_done(4);
  expect_error(Code::InvalidState, "slice 4", [&] { scheduler.on_done(4); });
  EXPECT_EQ(scheduler.in_flight_bytes(), 0u) << "refused calls must change nothing";
}

TEST(Scheduler, RefusesBadValues) {
  expect_error(Code::InvalidArgument, "credit_bytes", [] { Scheduler bad(with_credit(0)); });
  Scheduler scheduler(with_credit(10));
  const std::size_t most = std::numeric_limits<std::size_t>::max();
  scheduler.on_ready(0, 0, most, kNow);
  expect_error(Code::InvalidArgument, "slice 1", [&] { scheduler.on_ready(1, 0, 1, kNow); });
  EXPECT_THAT(grants(scheduler), ElementsAre(0));
  expect_error(Code::InvalidArgument, "slice 1", [&] { scheduler.on_ready(1, 0, 1, kNow); });
  scheduler.on_done(0);
  scheduler.on_ready(1, 0, 1, kNow);
  EXPECT_THAT(grants(scheduler), ElementsAre(1));
}

TEST(Scheduler, ResetForgetsEverything) {
  Scheduler scheduler(with_credit(10));
  scheduler.on_ready(0, 0, 10, kNow);
  scheduler.on_ready(1, 0, 10, kNow);
  scheduler.on_arrival(2);
  ASSERT_THAT(grants(scheduler), ElementsAre(0));
  scheduler.reset();
  EXPECT_EQ(scheduler.in_flight_bytes(), 0u);
  EXPECT_EQ(scheduler.waiting_count(), 0u);
  EXPECT_THAT(grants(scheduler), IsEmpty());
  scheduler.on_ready(0, 0, 10, kNow);
  scheduler.on_ready(2, 0, 10, kNow);
  EXPECT_THAT(grants(scheduler), ElementsAre(0)) << "options stay, the arrival of 2 is forgotten";
}

TEST(Scheduler, CanBeMoved) {
  Scheduler first(with_credit(10));
  first.on_ready(0, 0, 10, kNow);
  Scheduler second = std::move(first);
  EXPECT_THAT(grants(second), ElementsAre(0));
  first = Scheduler(with_credit(5));
  first.on_ready(3, 0, 5, kNow);
  EXPECT_THAT(grants(first), ElementsAre(3));
}

TEST(Scheduler, ParsesPolicies) {
  EXPECT_EQ(parse_policy("priority"), Policy::Priority);
  EXPECT_EQ(parse_policy("fifo"), Policy::Fifo);
  expect_error(Code::InvalidArgument, "'Fifo'", [] { parse_policy("Fifo"); });
  expect_error(Code::InvalidArgument, "''", [] { parse_policy(""); });
}

}  // namespace
}  // namespace tersum::scheduler
