// Ranks need not agree on an order: with the admission of arrivals, every slice ends on every rank,
// whatever readiness, priorities, credit and delays are. Without it, they deadlock.
#include <gtest/gtest.h>

#include <random>
#include <string>

#include "exchange_simulation.hpp"

namespace tersum::scheduler {
namespace {

using testing::ExchangeOutcome;
using testing::ExchangeScenario;
using testing::simulate_exchange;
using testing::Spread;

ExchangeScenario random_scenario(std::uint64_t seed, Spread spread) {
  std::mt19937_64 random(seed);
  const auto pick = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  ExchangeScenario scenario;
  scenario.seed = seed;
  scenario.ranks = pick(2, 8);
  scenario.slices = static_cast<std::uint32_t>(pick(1, 60));
  scenario.rounds = pick(0, 2) == 0 ? 3 : 1;
  scenario.spread = spread;
  return scenario;
}

void expect_no_deadlock(Spread spread, std::uint64_t seeds) {
  std::size_t overdrawn = 0;
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    const ExchangeOutcome outcome = simulate_exchange(random_scenario(seed, spread));
    ASSERT_EQ(outcome.unfinished, 0u) << "seed " << seed;
    overdrawn += outcome.overdrawn;
  }
  EXPECT_GT(overdrawn, seeds) << "the seeds must exercise the admission of arrivals";
}

void expect_deadlocks_without_admission(Spread spread) {
  std::size_t deadlocks = 0;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    ExchangeScenario scenario = random_scenario(seed, spread);
    scenario.admit_arrivals = false;
    if (simulate_exchange(scenario).unfinished > 0) ++deadlocks;
  }
  EXPECT_GT(deadlocks, 50u) << "a simulation that cannot deadlock shows nothing";
}

TEST(DeadlockFreedom, EverySliceEndsWhenStartsAreToldToAll) {
  expect_no_deadlock(Spread::Direct, 1500);
}

TEST(DeadlockFreedom, EverySliceEndsWhenStartsGoRoundARing) {
  expect_no_deadlock(Spread::Ring, 1500);
}

TEST(DeadlockFreedom, NeedsTheAdmissionOfArrivals) {
  expect_deadlocks_without_admission(Spread::Direct);
  expect_deadlocks_without_admission(Spread::Ring);
}

TEST(DeadlockFreedom, TwoRanksInOppositeOrderWithCreditForOneSlice) {
  // The smallest deadlock: both slices are stuck on both ranks.
  ExchangeScenario scenario;
  scenario.slices = 2;
  bool found = false;
  for (scenario.seed = 0; scenario.seed < 1000 && !found; ++scenario.seed) {
    scenario.admit_arrivals = false;
    found = simulate_exchange(scenario).unfinished == 4;
    scenario.admit_arrivals = true;
    ASSERT_EQ(simulate_exchange(scenario).unfinished, 0u) << "seed " << scenario.seed;
  }
  EXPECT_TRUE(found);
}

}  // namespace
}  // namespace tersum::scheduler
