// Ranks that never call, go away, die or are aborted: nothing stays pending, and the first cause is
// told.
#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <string>
#include <vector>

#include "src/support.hpp"

namespace tersum::test {
namespace {

using std::chrono::milliseconds;

/// One fp32 in place per work.
struct Values {
  std::vector<float> values = std::vector<float>(64, 1.0f);
  std::vector<Work> works;
  void reduce(Communicator& c) {
    works.push_back(c.all_reduce(&values[works.size()], &values[works.size()], 1, DType::Float32));
  }
};

/// What a call on a communicator that has ended gets.
Status call_again(Communicator& c) {
  float value = 0;
  return outcome(c.all_reduce(&value, &value, 1, DType::Float32));
}

TEST(Timeout, NamesTheOperationTheLimitAndWhoIsMissing) {
  World world = make_world(3, quiet(milliseconds(300)));
  Values values;
  values.reduce(world[0]);
  values.reduce(world[2]);
  for (const Work& work : values.works) {
    const Status status = outcome(work);
    EXPECT_EQ(status.code(), Code::Timeout) << status.to_string();
    EXPECT_NE(status.message().find("all_reduce #0"), std::string::npos) << status.message();
    EXPECT_NE(status.message().find("300 ms"), std::string::npos) << status.message();
    EXPECT_NE(status.message().find("rank 1"), std::string::npos) << status.message();
  }
  EXPECT_EQ(values.values[0], 1.0f);
}

TEST(Timeout, EndsTheCommunicatorOnAllRanks) {
  World world = make_world(3, quiet(milliseconds(300)));
  Values values;
  values.reduce(world[0]);
  values.reduce(world[2]);
  for (const Work& work : values.works) EXPECT_EQ(outcome(work).code(), Code::Timeout);
  for (int rank : {0, 2, 1}) {
    Communicator& c = world[static_cast<std::size_t>(rank)];
    EXPECT_EQ(call_again(c).code(), Code::Timeout) << rank;
    EXPECT_EQ(c.status().code(), Code::Timeout) << rank;
    EXPECT_NE(c.status().message().find("all_reduce #0"), std::string::npos);
    EXPECT_EQ(thrown_by([&] { c.split(0); }).code(), Code::Timeout);
  }
}

TEST(Timeout, OfOneCallBeatsTheSetting) {
  World world = make_world(2, quiet(std::chrono::hours(1)));
  CallOptions options;
  options.timeout = milliseconds(100);
  const Status status = outcome(world[0].barrier(options));
  EXPECT_EQ(status.code(), Code::Timeout);
  EXPECT_NE(status.message().find("100 ms"), std::string::npos) << status.message();
}

TEST(Timeout, MayBeForever) {
  World world = make_world(2);
  each_rank(2, [&](int rank) {
    CallOptions options;
    options.timeout = milliseconds::max();
    EXPECT_TRUE(succeeds(world[static_cast<std::size_t>(rank)].barrier(options)));
  });
}

TEST(Timeout, ComesToReceivesWithoutASender) {
  World world = make_world(2, quiet(milliseconds(200)));
  float value = 3;
  const Status status = outcome(world[1].receive(&value, 1, DType::Float32, 0));
  EXPECT_EQ(status.code(), Code::Timeout) << status.to_string();
  EXPECT_EQ(value, 3);
}

TEST(Timeout, ComesWhenAMessageIsLost) {
  std::vector<transport::FaultPlan> plans(2);
  plans[0].drops = {{1, 1}};
  World world = make_faulty_world(plans, quiet(milliseconds(300)));
  each_rank(2, [&](int rank) {
    float value = 1;
    const Status status = outcome(
        world[static_cast<std::size_t>(rank)].all_reduce(&value, &value, 1, DType::Float32));
    // Rank 0 has all that it needs; rank 1 waits in vain and says so.
    if (rank == 1) {
      EXPECT_EQ(status.code(), Code::Timeout);
    }
    if (!status.is_ok()) {
      EXPECT_EQ(value, 1);
    }
  });
}

TEST(Timeout, ComesWhenARankFallsSilent) {
  std::vector<transport::FaultPlan> plans(3);
  plans[1].silent_from = 1;
  World world = make_faulty_world(plans, quiet(milliseconds(400)));
  each_rank(3, [&](int rank) {
    std::vector<double> values(50000, rank);
    const auto before = values;
    const Status status = outcome(world[static_cast<std::size_t>(rank)].all_reduce(
        values.data(), values.data(), values.size(), DType::Float64));
    EXPECT_EQ(status.code(), Code::Timeout) << status.to_string();
    EXPECT_EQ(values, before);
  });
}

TEST(Abort, EndsWhatIsPendingOnAllRanksWithTheReason) {
  World world = make_world(3);
  std::vector<Values> values(3);
  for (std::size_t rank : {0u, 2u})
    for (int i = 0; i < 10; ++i) values[rank].reduce(world[rank]);
  world[2].abort("the loss is NaN");
  for (std::size_t rank : {0u, 2u})
    for (const Work& work : values[rank].works) {
      const Status status = outcome(work);
      EXPECT_EQ(status.code(), Code::Aborted);
      EXPECT_EQ(status.message(), "the loss is NaN");
    }
  for (float value : values[0].values) EXPECT_EQ(value, 1.0f);
  each_rank(3, [&](int rank) {
    Communicator& c = world[static_cast<std::size_t>(rank)];
    // Rank 1 had nothing pending: it hears of it soon, at the latest in its next call.
    const Status status = call_again(c);
    EXPECT_EQ(status.code(), Code::Aborted);
    EXPECT_EQ(status.message(), "the loss is NaN");
    EXPECT_EQ(c.status().message(), "the loss is NaN");
  });
}

TEST(Abort, TheFirstReasonStays) {
  World world = make_world(2);
  world[0].abort("first");
  world[0].abort("second");
  EXPECT_EQ(world[0].status().message(), "first");
}

TEST(Abort, OfOneGroupLeavesOthersAlone) {
  World world = make_world(2);
  std::vector<Communicator> other(2);
  each_rank(2, [&](int rank) {
    const auto r = static_cast<std::size_t>(rank);
    other[r] = world[r].split(0);
  });
  other[0].abort("enough");
  each_rank(2, [&](int rank) {
    const auto r = static_cast<std::size_t>(rank);
    EXPECT_EQ(call_again(other[r]).code(), Code::Aborted);
    EXPECT_TRUE(call_again(world[r]).is_ok());
  });
}

TEST(Abort, AtAnyMomentLeavesMemoryEitherWholeOrUntouched) {
  for (const char* algorithm : {"oneshot", "twoshot", "ring", "halving", "doubling"}) {
    Config config = quiet();
    config.algorithm = algorithm;
    for (unsigned turn = 0; turn < 20; ++turn) {
      constexpr int kRanks = 3;
      World world = make_world(kRanks, config);
      each_rank(kRanks, [&](int rank) {
        Communicator& c = world[static_cast<std::size_t>(rank)];
        const std::size_t count = turn % 2 == 0 ? 100000 : 500;
        std::vector<std::vector<float>> values(4, std::vector<float>(count, 1.0f));
        std::vector<Work> works;
        for (auto& v : values)
          works.push_back(c.all_reduce(v.data(), v.data(), count, DType::Float32));
        if (rank == 1) {
          if (turn % 5 > 0) (void)works[turn % 4].wait(std::chrono::microseconds(turn * 40));
          c.abort("now");
        }
        for (std::size_t i = 0; i < works.size(); ++i) {
          const Status status = outcome(works[i]);
          EXPECT_TRUE(status.is_ok() || status.code() == Code::Aborted) << status.to_string();
          const float expected = status.is_ok() ? kRanks : 1.0f;
          EXPECT_EQ(values[i], std::vector<float>(count, expected)) << algorithm;
        }
      });
    }
  }
}

TEST(Destruction, EndsPendingWorksWithAborted) {
  World world = make_world(2);
  Values values;
  for (int i = 0; i < 5; ++i) values.reduce(world[0]);
  world[0] = Communicator();
  for (const Work& work : values.works) {
    const Status status = outcome(work);
    EXPECT_EQ(status.code(), Code::Aborted) << status.to_string();
    EXPECT_NE(status.message().find("destroyed"), std::string::npos);
  }
  for (float value : values.values) EXPECT_EQ(value, 1.0f);
}

TEST(Destruction, TellsRanksThatWait) {
  World world = make_world(3);
  std::vector<Values> values(3);
  values[0].reduce(world[0]);
  values[1].reduce(world[1]);
  world[0] = Communicator();
  for (const auto& [rank, code] : {std::pair{0u, Code::Aborted}, {1u, Code::Aborted}}) {
    const Status status = outcome(values[rank].works[0]);
    // The good-bye of the whole process may be faster than the notice.
    EXPECT_TRUE(status.code() == code || (rank == 1 && status.code() == Code::PeerLost))
        << status.to_string();
  }
}

TEST(Destruction, OfARankThatWasWaitedForEndsTheWait) {
  World world = make_world(2);
  Values values;
  values.reduce(world[0]);
  world[1] = Communicator();
  const Status status = outcome(values.works[0]);
  EXPECT_TRUE(status.code() == Code::Aborted || status.code() == Code::PeerLost)
      << status.to_string();
}

TEST(Destruction, OfASubgroupWithPendingWorksSparesTheWorld) {
  World world = make_world(2);
  std::vector<Communicator> group(2);
  each_rank(2, [&](int rank) {
    const auto r = static_cast<std::size_t>(rank);
    group[r] = world[r].split(0);
  });
  Values values;
  values.reduce(group[0]);
  group[0] = Communicator();
  EXPECT_EQ(outcome(values.works[0]).code(), Code::Aborted);
  each_rank(
      2, [&](int rank) { EXPECT_TRUE(call_again(world[static_cast<std::size_t>(rank)]).is_ok()); });
  EXPECT_EQ(call_again(group[1]).code(), Code::Aborted);
}

TEST(PeerLoss, EndsAllPendingWorksOnAllSurvivors) {
  for (int victim : {0, 1, 2}) {
    auto hub = std::make_shared<transport::LoopbackHub>(3);
    World world = make_mortal_world(hub);
    std::vector<Values> values(3);
    for (std::size_t rank = 0; rank < 3; ++rank)
      for (int i = 0; i < 8 && static_cast<int>(rank) != victim; ++i)
        values[rank].reduce(world[rank]);
    hub->kill(victim);
    for (std::size_t rank = 0; rank < 3; ++rank) {
      for (const Work& work : values[rank].works) {
        const Status status = outcome(work);
        EXPECT_EQ(status.code(), Code::PeerLost) << status.to_string();
        EXPECT_EQ(status.rank(), victim);
        EXPECT_NE(status.message().find("rank " + std::to_string(victim)), std::string::npos);
      }
      for (float value : values[rank].values) EXPECT_EQ(value, 1.0f);
      if (static_cast<int>(rank) == victim) continue;
      const Status later = call_again(world[rank]);
      EXPECT_EQ(later.code(), Code::PeerLost);
      EXPECT_EQ(later.rank(), victim);
      EXPECT_EQ(world[rank].status().rank(), victim);
    }
  }
}

TEST(PeerLoss, TheDeadRanksOwnWorksEndWithItsCommunicator) {
  auto hub = std::make_shared<transport::LoopbackHub>(2);
  World world = make_mortal_world(hub);
  Values values;
  values.reduce(world[1]);
  hub->kill(1);
  values.reduce(world[1]);
  world[1] = Communicator();
  for (const Work& work : values.works) EXPECT_EQ(outcome(work).code(), Code::Aborted);
}

TEST(PeerLoss, EndsSubgroupsTooEvenThoseOfOthers) {
  auto hub = std::make_shared<transport::LoopbackHub>(3);
  World world = make_mortal_world(hub);
  std::vector<Communicator> group(3);
  each_rank(3, [&](int rank) {
    const auto r = static_cast<std::size_t>(rank);
    group[r] = world[r].split(rank == 2 ? 1 : 0);
  });
  Values values;
  values.reduce(group[0]);
  hub->kill(2);
  EXPECT_EQ(outcome(values.works[0]).code(), Code::PeerLost);
  EXPECT_EQ(call_again(group[1]).code(), Code::PeerLost);
}

TEST(PeerLoss, OfABrokenConnectionIsToldToAll) {
  // The connection between ranks 0 and 1 breaks; rank 2 hears of it from them.
  std::vector<transport::FaultPlan> plans(3);
  plans[0].failures = {{1, 40}};
  World world = make_faulty_world(plans);
  each_rank(3, [&](int rank) {
    Communicator& c = world[static_cast<std::size_t>(rank)];
    for (;;) {
      std::vector<double> values(3000, 1);
      const Status status =
          outcome(c.all_reduce(values.data(), values.data(), values.size(), DType::Float64));
      if (status.is_ok()) continue;
      EXPECT_EQ(status.code(), Code::PeerLost) << status.to_string();
      EXPECT_TRUE(status.rank() == 0 || status.rank() == 1) << status.rank();
      EXPECT_EQ(values, std::vector<double>(3000, 1));
      break;
    }
    EXPECT_EQ(call_again(c).code(), Code::PeerLost);
  });
}

TEST(PeerLoss, WhileEverythingIsBusyLeavesNothingPending) {
  for (unsigned turn = 0; turn < 10; ++turn) {
    auto hub = std::make_shared<transport::LoopbackHub>(4);
    World world = make_mortal_world(hub);
    std::atomic<int> started{0};
    each_rank(4, [&](int rank) {
      Communicator& c = world[static_cast<std::size_t>(rank)];
      std::vector<std::vector<float>> values(20, std::vector<float>(5000, 1.0f));
      std::vector<Work> works;
      for (auto& v : values)
        works.push_back(c.all_reduce(v.data(), v.data(), v.size(), DType::Float32));
      ++started;
      if (rank == 3) {
        while (started < 4) std::this_thread::yield();
        (void)works[turn].status();
        hub->kill(3);
        c = Communicator();
      }
      for (std::size_t i = 0; i < works.size(); ++i) {
        const Status status = outcome(works[i]);
        const float expected = status.is_ok() ? 4.0f : 1.0f;
        EXPECT_EQ(values[i], std::vector<float>(5000, expected)) << status.to_string();
      }
    });
  }
}

}  // namespace
}  // namespace tersum::test
