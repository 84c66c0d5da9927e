// Send and receive.
#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "src/numbers.hpp"
#include "src/support.hpp"

namespace tersum::test {
namespace {

TEST(SendReceive, MovesEveryDTypeAndCount) {
  World world = make_world(2);
  each_rank(2, [&](int rank) {
    for (DType dtype : kAllDTypes)
      for (std::size_t count : {0u, 1u, 7u, 1000u, 70001u}) {
        const auto expected = pattern(dtype, ReduceOp::Sum, 4, count);
        Guarded data(expected.size());
        if (rank == 0) {
          if (count > 0) std::memcpy(data.data(), expected.data(), expected.size());
          ASSERT_TRUE(succeeds(world[0].send(data.data(), count, dtype, 1)));
        } else {
          ASSERT_TRUE(succeeds(world[1].receive(data.data(), count, dtype, 0)));
        }
        EXPECT_TRUE(same_bytes(data.view(), expected) && data.intact());
      }
  });
}

TEST(SendReceive, GoesBothWaysAtOnce) {
  World world = make_world(2);
  each_rank(2, [&](int rank) {
    Communicator& c = world[static_cast<std::size_t>(rank)];
    std::vector<std::int32_t> out(100000, rank), in(100000, -1);
    const Work sent = c.send(out.data(), out.size(), DType::Int32, 1 - rank);
    const Work got = c.receive(in.data(), in.size(), DType::Int32, 1 - rank);
    EXPECT_TRUE(succeeds(sent));
    EXPECT_TRUE(succeeds(got));
    EXPECT_EQ(in, std::vector<std::int32_t>(100000, 1 - rank));
  });
}

TEST(SendReceive, ManyMessagesMeetInTheirOrder) {
  constexpr std::size_t kMessages = 300;
  World world = make_world(3);
  each_rank(3, [&](int rank) {
    Communicator& c = world[static_cast<std::size_t>(rank)];
    std::vector<Work> works;
    std::vector<std::vector<std::int64_t>> out(3), in(3);
    for (int peer = 0; peer < 3; ++peer) {
      const auto p = static_cast<std::size_t>(peer);
      out[p].resize(kMessages);
      in[p].assign(kMessages, -1);
      std::iota(out[p].begin(), out[p].end(), 1000 * (10 * rank + peer));
    }
    // Receives first on one rank, sends first on another, in turns on the third.
    for (std::size_t i = 0; i < kMessages; ++i)
      for (int peer = 0; peer < 3; ++peer) {
        if (peer == rank) continue;
        auto& from = in[static_cast<std::size_t>(peer)];
        auto& to = out[static_cast<std::size_t>(peer)];
        if (rank == 0 || (rank == 2 && i % 2 == 0)) {
          works.push_back(c.receive(&from[i], 1, DType::Int64, peer));
          works.push_back(c.send(&to[i], 1, DType::Int64, peer));
        } else {
          works.push_back(c.send(&to[i], 1, DType::Int64, peer));
          works.push_back(c.receive(&from[i], 1, DType::Int64, peer));
        }
      }
    for (const Work& work : works) ASSERT_TRUE(succeeds(work));
    for (int peer = 0; peer < 3; ++peer)
      for (std::size_t i = 0; i < kMessages && peer != rank; ++i)
        ASSERT_EQ(in[static_cast<std::size_t>(peer)][i],
                  1000 * (10 * peer + rank) + static_cast<std::int64_t>(i));
  });
}

TEST(SendReceive, MixesWithCollectives) {
  World world = make_world(3);
  each_rank(3, [&](int rank) {
    Communicator& c = world[static_cast<std::size_t>(rank)];
    for (int turn = 0; turn < 50; ++turn) {
      int value = rank + turn, got = -1;
      float sum = static_cast<float>(rank);
      const Work reduced = c.all_reduce(&sum, &sum, 1, DType::Float32);
      const Work sent = c.send(&value, 1, DType::Int32, (rank + 1) % 3);
      const Work received = c.receive(&got, 1, DType::Int32, (rank + 2) % 3);
      ASSERT_TRUE(succeeds(received) && succeeds(sent) && succeeds(reduced));
      EXPECT_EQ(got, (rank + 2) % 3 + turn);
      EXPECT_EQ(sum, 3.0f);
    }
  });
}

TEST(SendReceive, ASendDoesNotEndBeforeItsReceiveHasBegun) {
  World world = make_world(2);
  int out = 7, in = 0;
  const Work sent = world[0].send(&out, 1, DType::Int32, 1);
  // Everything that rank 0 will ever say about it has been said when a barrier is over.
  const Work barriers[] = {world[0].barrier(), world[1].barrier()};
  for (const Work& work : barriers) EXPECT_TRUE(succeeds(work));
  EXPECT_FALSE(sent.done());
  EXPECT_TRUE(succeeds(world[1].receive(&in, 1, DType::Int32, 0)));
  EXPECT_TRUE(succeeds(sent));
  EXPECT_EQ(in, 7);
}

}  // namespace
}  // namespace tersum::test
