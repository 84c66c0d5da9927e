// What holds for every stream of events, checked against a naive model that counts everything
// slice by slice.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "scheduler/scheduler.hpp"

namespace tersum::scheduler {
namespace {

constexpr Time kNow{0};

/// The rules as written down, in O(n) a step.
class NaiveScheduler {
 public:
  struct Waiting {
    SliceId slice;
    int priority;
    std::size_t bytes;
    bool started_by_peer;
    std::size_t overtaken;  ///< by any grant of a slice that became ready later
    std::size_t overtaken_under_credit;
  };

  explicit NaiveScheduler(const SchedulerOptions& options) : options_(options) {}

  void on_ready(SliceId slice, int priority, std::size_t bytes) {
    const auto announced = std::find(announced_.begin(), announced_.end(), slice);
    waiting_.push_back({slice, priority, bytes, announced != announced_.end(), 0, 0});
    if (announced != announced_.end()) announced_.erase(announced);
  }
  void on_arrival(SliceId slice) {
    for (Waiting& waiting : waiting_) {
      if (waiting.slice == slice) {
        waiting.started_by_peer = true;
        return;
      }
    }
    for (const Waiting& flight : in_flight_) {
      if (flight.slice == slice) return;
    }
    if (std::find(announced_.begin(), announced_.end(), slice) == announced_.end()) {
      announced_.push_back(slice);
    }
  }
  std::optional<Grant> next() {
    const bool credit = in_flight_bytes() < options_.credit_bytes;
    auto best = waiting_.end();
    for (auto at = waiting_.begin(); at != waiting_.end(); ++at) {
      if (!credit && !at->started_by_peer) continue;
      if (credit && at->overtaken >= options_.overtakes) {
        best = at;
        break;
      }
      const bool more_urgent = best == waiting_.end() || (options_.policy == Policy::Priority &&
                                                          at->priority < best->priority);
      if (more_urgent) best = at;
    }
    if (best == waiting_.end()) return std::nullopt;
    for (auto at = waiting_.begin(); at != best; ++at) {
      ++at->overtaken;
      if (credit) ++at->overtaken_under_credit;
    }
    most_overtaken_ = std::max(most_overtaken_, best->overtaken_under_credit);
    in_flight_.push_back(*best);
    waiting_.erase(best);
    return Grant{in_flight_.back().slice, !credit};
  }
  void on_done(SliceId slice) {
    std::erase_if(in_flight_, [&](const Waiting& flight) { return flight.slice == slice; });
  }
  std::size_t in_flight_bytes() const {
    std::size_t sum = 0;
    for (const Waiting& flight : in_flight_) sum += flight.bytes;
    return sum;
  }
  /// Over all slices granted so far.
  std::size_t most_overtaken() const { return most_overtaken_; }
  const std::vector<Waiting>& waiting() const { return waiting_; }
  const std::vector<Waiting>& in_flight() const { return in_flight_; }

 private:
  SchedulerOptions options_;
  std::vector<Waiting> waiting_;  ///< longest ready first
  std::vector<Waiting> in_flight_;
  std::vector<SliceId> announced_;
  std::size_t most_overtaken_ = 0;
};

/// Drives a Scheduler and the naive model with the same random events and compares every answer.
class Stream {
 public:
  Stream(std::uint64_t seed, const SchedulerOptions& options, bool arrivals)
      : random_(seed), arrivals_(arrivals), scheduler_(options), naive_(options) {}

  std::size_t pick(std::size_t low, std::size_t high) {
    return std::uniform_int_distribution<std::size_t>(low, high)(random_);
  }
  void step() {
    const std::size_t event = pick(0, 9);
    if (event < 5) {
      ready();
    } else if (event < 6 && arrivals_) {
      const auto slice = static_cast<SliceId>(pick(0, kSlices - 1));
      scheduler_.on_arrival(slice);
      naive_.on_arrival(slice);
    } else if (!naive_.in_flight().empty()) {
      const SliceId slice = naive_.in_flight()[pick(0, naive_.in_flight().size() - 1)].slice;
      scheduler_.on_done(slice);
      naive_.on_done(slice);
    }
    // Sometimes several events come before the engine asks.
    if (pick(0, 3) > 0) grant_all();
  }
  void grant_all() {
    for (;;) {
      const auto expected = naive_.next();
      const auto actual = scheduler_.next(kNow);
      ASSERT_EQ(actual.has_value(), expected.has_value());
      if (!expected) break;
      ASSERT_EQ(actual->slice, expected->slice);
      ASSERT_EQ(actual->overdrawn, expected->overdrawn);
      overdrawn_ += expected->overdrawn ? 1 : 0;
    }
    ASSERT_EQ(scheduler_.in_flight_bytes(), naive_.in_flight_bytes());
    ASSERT_EQ(scheduler_.waiting_count(), naive_.waiting().size());
  }
  const NaiveScheduler& naive() const { return naive_; }
  std::size_t overdrawn() const { return overdrawn_; }

 private:
  static constexpr std::size_t kSlices = 60;

  void ready() {
    const auto slice = static_cast<SliceId>(pick(0, kSlices - 1));
    const auto same = [&](const auto& other) { return other.slice == slice; };
    const auto& waiting = naive_.waiting();
    const auto& in_flight = naive_.in_flight();
    if (std::any_of(waiting.begin(), waiting.end(), same) ||
        std::any_of(in_flight.begin(), in_flight.end(), same)) {
      return;
    }
    const int priority = static_cast<int>(pick(0, 1) == 0 ? 0 : pick(0, 20));
    const std::size_t bytes = pick(0, 100);
    scheduler_.on_ready(slice, priority, bytes, kNow);
    naive_.on_ready(slice, priority, bytes);
  }

  std::mt19937_64 random_;
  bool arrivals_;
  Scheduler scheduler_;
  NaiveScheduler naive_;
  std::size_t overdrawn_ = 0;
};

SchedulerOptions random_options(std::mt19937_64& random) {
  SchedulerOptions options;
  options.credit_bytes = std::uniform_int_distribution<std::size_t>(1, 300)(random);
  options.overtakes = std::uniform_int_distribution<std::size_t>(0, 12)(random);
  options.policy = random() % 4 == 0 ? Policy::Fifo : Policy::Priority;
  return options;
}

TEST(SchedulerProperties, FollowsTheRulesForRandomStreams) {
  std::mt19937_64 random(1);
  std::size_t overdrawn = 0;
  for (std::uint64_t seed = 0; seed < 300 && !::testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Stream stream(seed, random_options(random), true);
    for (int i = 0; i < 400 && !::testing::Test::HasFailure(); ++i) stream.step();
    overdrawn += stream.overdrawn();
  }
  EXPECT_GT(overdrawn, 1000u) << "the streams must exercise arrivals";
}

TEST(SchedulerProperties, NoSliceIsOvertakenBeyondTheBound) {
  std::mt19937_64 random(2);
  std::size_t reached = 0;
  for (std::uint64_t seed = 0; seed < 300 && !::testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const SchedulerOptions options = random_options(random);
    Stream stream(seed, options, seed % 2 == 0);
    for (int i = 0; i < 400 && !::testing::Test::HasFailure(); ++i) {
      stream.step();
      for (const auto& waiting : stream.naive().waiting()) {
        ASSERT_LE(waiting.overtaken_under_credit, options.overtakes);
      }
    }
    ASSERT_LE(stream.naive().most_overtaken(), options.overtakes);
    if (stream.naive().most_overtaken() == options.overtakes) ++reached;
  }
  EXPECT_GT(reached, 100u) << "the bound must be tight in many streams";
}

TEST(SchedulerProperties, CreditBoundsWhatIsInFlight) {
  // Without arrivals: less than the credit, and the one slice that was granted on top of it.
  std::mt19937_64 random(3);
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    const SchedulerOptions options = random_options(random);
    Stream stream(seed, options, false);
    for (int i = 0; i < 400; ++i) {
      stream.step();
      ASSERT_LT(stream.naive().in_flight_bytes(), options.credit_bytes + 100);
      ASSERT_EQ(stream.overdrawn(), 0u);
    }
  }
}

TEST(SchedulerProperties, TheMostUrgentSliceWaitsAtMostForTheBytesInFlight) {
  std::mt19937_64 random(4);
  std::size_t had_to_wait = 0;
  for (int trial = 0; trial < 1000; ++trial) {
    const auto pick = [&](std::size_t low, std::size_t high) {
      return std::uniform_int_distribution<std::size_t>(low, high)(random);
    };
    SchedulerOptions options;
    options.credit_bytes = pick(1, 300);
    options.overtakes = std::numeric_limits<std::size_t>::max();
    Scheduler scheduler(options);
    std::vector<std::size_t> bytes(pick(1, 50));
    for (SliceId slice = 0; slice < bytes.size(); ++slice) {
      bytes[slice] = pick(1, 100);
      scheduler.on_ready(slice, static_cast<int>(pick(1, 9)), bytes[slice], kNow);
    }
    std::vector<SliceId> in_flight;
    while (const auto grant = scheduler.next(kNow)) in_flight.push_back(grant->slice);

    const std::size_t in_flight_bytes = scheduler.in_flight_bytes();
    const auto urgent = static_cast<SliceId>(bytes.size());
    scheduler.on_ready(urgent, 0, 50, kNow);
    std::size_t waited_bytes = 0;
    auto grant = scheduler.next(kNow);
    while (!grant) {
      ASSERT_FALSE(in_flight.empty());
      waited_bytes += bytes[in_flight.back()];
      scheduler.on_done(in_flight.back());
      in_flight.pop_back();
      grant = scheduler.next(kNow);
      ++had_to_wait;
    }
    EXPECT_EQ(grant->slice, urgent) << "a less urgent slice started meanwhile";
    EXPECT_LE(waited_bytes, in_flight_bytes);
  }
  EXPECT_GT(had_to_wait, 100u);
}

TEST(SchedulerProperties, OrdersManySlices) {
  constexpr SliceId kSlices = 100'000;
  SchedulerOptions options;
  options.credit_bytes = 1;
  options.overtakes = std::numeric_limits<std::size_t>::max();
  Scheduler scheduler(options);
  // 7919 is prime to kSlices, so every priority comes once.
  for (SliceId i = 0; i < kSlices; ++i) {
    const auto slice = static_cast<SliceId>(std::uint64_t{i} * 7919 % kSlices);
    scheduler.on_ready(slice, static_cast<int>(slice), 1, kNow);
  }
  for (SliceId slice = 0; slice < kSlices; ++slice) {
    const auto grant = scheduler.next(kNow);
    ASSERT_TRUE(grant);
    ASSERT_EQ(grant->slice, slice);
    scheduler.on_done(slice);
  }
}

}  // namespace
}  // namespace tersum::scheduler
