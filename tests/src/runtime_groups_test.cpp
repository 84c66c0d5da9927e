// Several communicators: split, life side by side, use from several threads.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <numeric>
#include <random>
#include <vector>

#include "src/support.hpp"

namespace tersum::test {
namespace {

/// The world ranks of a group, by all-gather: what all of its members believe must agree.
std::vector<int> members(Communicator& c) {
  std::vector<int> all(static_cast<std::size_t>(c.size()), -1);
  const int mine = c.world_rank(c.rank());
  EXPECT_TRUE(succeeds(c.all_gather(&mine, all.data(), 1, DType::Int32)));
  for (int r = 0; r < c.size(); ++r) EXPECT_EQ(all[static_cast<std::size_t>(r)], c.world_rank(r));
  return all;
}

TEST(Split, GroupsByColor) {
  World world = make_world(5);
  each_rank(5, [&](int rank) {
    Communicator c = world[static_cast<std::size_t>(rank)].split(rank % 2);
    EXPECT_EQ(members(c), rank % 2 == 0 ? (std::vector<int>{0, 2, 4}) : (std::vector<int>{1, 3}));
    EXPECT_EQ(c.rank(), rank / 2);
  });
}

TEST(Split, OfEachRankAloneAndOfAllTogether) {
  World world = make_world(3);
  each_rank(3, [&](int rank) {
    Communicator& parent = world[static_cast<std::size_t>(rank)];
    Communicator alone = parent.split(1000000 + rank);
    EXPECT_EQ(members(alone), std::vector<int>{rank});
    Communicator together = parent.split(7);
    EXPECT_EQ(members(together), (std::vector<int>{0, 1, 2}));
  });
}

TEST(Split, ANegativeColorJoinsNothing) {
  World world = make_world(4);
  each_rank(4, [&](int rank) {
    Communicator c = world[static_cast<std::size_t>(rank)].split(rank == 2 ? -1 : 0);
    EXPECT_EQ(c.valid(), rank != 2);
    if (c.valid()) {
      EXPECT_EQ(members(c), (std::vector<int>{0, 1, 3}));
    }
  });
  each_rank(
      4, [&](int rank) { EXPECT_FALSE(world[static_cast<std::size_t>(rank)].split(-5).valid()); });
}

TEST(Split, KeysOrderTheRanksAndEqualKeysKeepTheirOrder) {
  World world = make_world(4);
  each_rank(4, [&](int rank) {
    Communicator& parent = world[static_cast<std::size_t>(rank)];
    Communicator reversed = parent.split(0, -rank);
    EXPECT_EQ(members(reversed), (std::vector<int>{3, 2, 1, 0}));
    EXPECT_EQ(reversed.rank(), 3 - rank);
    Communicator pairs = parent.split(0, rank / 2 == 0 ? 5 : -5);
    EXPECT_EQ(members(pairs), (std::vector<int>{2, 3, 0, 1}));
    // Of a reordered group: ranks are those of the parent.
    Communicator again = reversed.split(0);
    EXPECT_EQ(members(again), (std::vector<int>{3, 2, 1, 0}));
  });
}

TEST(Split, ReorderedGroupsReduceAndBroadcastByTheirOwnRanks) {
  World world = make_world(4);
  each_rank(4, [&](int rank) {
    Communicator c = world[static_cast<std::size_t>(rank)].split(0, -rank);
    int value = rank;
    EXPECT_TRUE(succeeds(c.broadcast(&value, 1, DType::Int32, 0)));
    EXPECT_EQ(value, 3);
    int sent = rank, got = -1;
    const Work out = c.send(&sent, 1, DType::Int32, (c.rank() + 1) % 4);
    const Work in = c.receive(&got, 1, DType::Int32, (c.rank() + 3) % 4);
    EXPECT_TRUE(succeeds(out) && succeeds(in));
    EXPECT_EQ(got, (rank + 1) % 4);
  });
}

TEST(Split, NestsAndGroupsGoInAnyOrder) {
  World world = make_world(6);
  each_rank(6, [&](int rank) {
    std::vector<Communicator> groups{world[static_cast<std::size_t>(rank)]};
    groups.push_back(groups[0].split(rank / 3));
    groups.push_back(groups[1].split(groups[1].rank() % 2));
    groups.push_back(groups[0].split(rank % 2, -rank));
    for (Communicator& c : groups) (void)members(c);
    world[static_cast<std::size_t>(rank)] = Communicator();
    std::mt19937 random(static_cast<unsigned>(rank));
    // Each rank drops its handles in an order of its own; those that remain go on only once all
    // of a group's members have used it, so the uses come first.
    for (Communicator& c : groups) ASSERT_TRUE(succeeds(c.barrier()));
    std::shuffle(groups.begin(), groups.end(), random);
    while (!groups.empty()) groups.pop_back();
  });
}

TEST(Split, AChildOutlivesItsParent) {
  World world = make_world(3);
  each_rank(3, [&](int rank) {
    auto& parent = world[static_cast<std::size_t>(rank)];
    Communicator child = parent.split(0);
    parent = Communicator();
    for (int i = 0; i < 20; ++i) (void)members(child);
  });
}

TEST(Split, ManyTimesInARow) {
  World world = make_world(3);
  each_rank(3, [&](int rank) {
    Communicator& parent = world[static_cast<std::size_t>(rank)];
    for (int i = 0; i < 100; ++i) {
      Communicator c = parent.split((rank + i) % 2);
      float one = 1;
      ASSERT_TRUE(succeeds(c.all_reduce(&one, &one, 1, DType::Float32)));
      EXPECT_EQ(one, static_cast<float>(c.size()));
    }
  });
}

TEST(Communicators, AreUsedSideBySideByThreadsOfTheirOwn) {
  constexpr int kRanks = 3, kGroups = 4;
  World world = make_world(kRanks);
  each_rank(kRanks, [&](int rank) {
    std::vector<Communicator> groups;
    for (int g = 0; g < kGroups; ++g)
      groups.push_back(world[static_cast<std::size_t>(rank)].split(0, g % 2 == 0 ? rank : -rank));
    each_rank(kGroups, [&](int g) {
      Communicator& c = groups[static_cast<std::size_t>(g)];
      for (int i = 0; i < 60; ++i) {
        std::vector<std::int32_t> values(static_cast<std::size_t>(i * 50 + 1), rank + g * i);
        ASSERT_TRUE(
            succeeds(c.all_reduce(values.data(), values.data(), values.size(), DType::Int32)));
        for (std::int32_t v : values) ASSERT_EQ(v, 3 + 3 * g * i);
      }
    });
  });
}

TEST(Communicators, SplitsOfDifferentParentsOverlapInTime) {
  // The threads of a rank run in any order, so that group ids are handed out in any order.
  constexpr int kRanks = 3, kThreads = 3;
  World world = make_world(kRanks);
  each_rank(kRanks, [&](int rank) {
    std::vector<Communicator> parents;
    for (int t = 0; t < kThreads; ++t)
      parents.push_back(world[static_cast<std::size_t>(rank)].split(0));
    each_rank(kThreads, [&](int thread) {
      std::vector<Communicator> children;
      for (int i = 0; i < 15; ++i) {
        children.push_back(parents[static_cast<std::size_t>(thread)].split(0, thread % 2 * -rank));
        for (Communicator& child : children) {
          std::int64_t value = thread + 1;
          ASSERT_TRUE(succeeds(child.all_reduce(&value, &value, 1, DType::Int64)));
          ASSERT_EQ(value, kRanks * (thread + 1));
        }
      }
    });
  });
}

TEST(Communicators, OneCommunicatorTakesCallsFromSeveralThreads) {
  // Threads share it under a lock of the caller's, which makes the order the same on all ranks.
  constexpr int kRanks = 2, kThreads = 4, kCalls = 200;
  World world = make_world(kRanks);
  std::vector<std::vector<float>> values(kRanks, std::vector<float>(kCalls));
  each_rank(kRanks, [&](int rank) {
    const auto r = static_cast<std::size_t>(rank);
    std::mutex order;
    std::size_t next = 0;
    each_rank(kThreads, [&](int) {
      for (;;) {
        Work work;
        std::size_t mine;
        {
          std::lock_guard lock(order);
          if (next == kCalls) return;
          mine = next++;
          values[r][mine] = static_cast<float>(mine);
          work = world[r].all_reduce(&values[r][mine], &values[r][mine], 1, DType::Float32);
        }
        EXPECT_TRUE(succeeds(work));
        EXPECT_EQ(values[r][mine], static_cast<float>(2 * mine));
      }
    });
  });
}

TEST(Worlds, SeveralOfOneProcessDoNotMeet) {
  World first = make_world(2), second = make_world(3);
  std::vector<std::thread> threads;
  for (World* world : {&first, &second})
    threads.emplace_back([world] {
      each_rank(static_cast<int>(world->size()), [&](int rank) {
        Communicator& c = (*world)[static_cast<std::size_t>(rank)];
        for (int i = 0; i < 50; ++i) {
          float one = 1;
          EXPECT_TRUE(succeeds(c.all_reduce(&one, &one, 1, DType::Float32)));
          EXPECT_EQ(one, static_cast<float>(c.size()));
        }
      });
    });
  for (auto& thread : threads) thread.join();
}

}  // namespace
}  // namespace tersum::test
