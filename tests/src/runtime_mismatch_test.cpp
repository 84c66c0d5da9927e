// Ranks that disagree about a call: all get Mismatch with both views, and the communicator goes on.
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "src/support.hpp"

namespace tersum::test {
namespace {

/// Memory for any of the calls below.
struct Memory {
  std::vector<double> input = std::vector<double>(16384, 1.0);
  std::vector<double> output = std::vector<double>(16384, -1.0);
  std::vector<std::size_t> counts, others;
};

using Call = std::function<Work(Communicator&, Memory&)>;

/// What most ranks call, what one calls instead, and words that the message must have.
struct Difference {
  std::string name;
  Call usual, odd;
  std::vector<std::string> words;
};

Call all_reduce(std::size_t count, DType dtype, ReduceOp op = ReduceOp::Sum,
                CallOptions options = {}) {
  return [=](Communicator& c, Memory& m) {
    return c.all_reduce(m.input.data(), m.output.data(), count, dtype, op, options);
  };
}
Call broadcast(std::size_t count, DType dtype, int root) {
  return
      [=](Communicator& c, Memory& m) { return c.broadcast(m.output.data(), count, dtype, root); };
}
Call reduce(std::size_t count, int root) {
  return [=](Communicator& c, Memory& m) {
    return c.reduce(m.input.data(), m.output.data(), count, DType::Float32, ReduceOp::Sum, root);
  };
}
Call barrier() {
  return [](Communicator& c, Memory&) { return c.barrier(); };
}
/// `extra` elements more from rank 0 than from others.
Call all_gather_v(std::size_t extra) {
  return [=](Communicator& c, Memory& m) {
    m.counts.assign(static_cast<std::size_t>(c.size()), 8);
    m.counts[0] += extra;
    m.counts[1] -= extra;
    return c.all_gather_v(m.input.data(), m.output.data(), m.counts, DType::Float32);
  };
}
CallOptions scaled(double pre, double post) {
  CallOptions options;
  options.pre_scale = pre;
  options.post_scale = post;
  return options;
}

std::vector<Difference> differences() {
  const Call usual = all_reduce(16, DType::Float32);
  return {
      {"Collective", usual, barrier(), {"all_reduce of 16 fp32, sum", "barrier"}},
      {"CollectiveOfSameShape",
       usual,
       broadcast(16, DType::Float32, 0),
       {"all_reduce of 16 fp32, sum", "broadcast of 16 fp32, root 0"}},
      {"Count", usual, all_reduce(17, DType::Float32), {"16 fp32", "17 fp32"}},
      {"NothingAtAll", usual, all_reduce(0, DType::Float32), {"16 fp32", "0 fp32"}},
      {"LargeCount",
       all_reduce(4096, DType::Float64),
       all_reduce(4095, DType::Float64),
       {"4096 fp64", "4095 fp64"}},
      {"DType", usual, all_reduce(16, DType::Int32), {"16 fp32", "16 int32"}},
      {"Operator", usual, all_reduce(16, DType::Float32, ReduceOp::Max), {"sum", "max"}},
      {"Scale", usual, all_reduce(16, DType::Float32, ReduceOp::Sum, scaled(2, 1)), {"scales"}},
      {"SwappedScales",
       all_reduce(16, DType::Float32, ReduceOp::Sum, scaled(1, 2)),
       all_reduce(16, DType::Float32, ReduceOp::Sum, scaled(2, 1)),
       {"scales"}},
      {"BroadcastRoot",
       broadcast(16, DType::Float32, 0),
       broadcast(16, DType::Float32, 1),
       {"root 0", "root 1"}},
      {"LargeBroadcastCount",
       broadcast(16384, DType::Float64, 0),
       broadcast(16000, DType::Float64, 0),
       {"16384 fp64", "16000 fp64"}},
      {"ReduceRoot", reduce(16, 0), reduce(16, 1), {"root 0", "root 1"}},
      {"ReduceCount", reduce(16, 0), reduce(15, 0), {"16 fp32", "15 fp32"}},
      {"PerRankCounts", all_gather_v(0), all_gather_v(1), {"per-rank counts"}},
      {"BarrierAndCollective", barrier(), usual, {"barrier", "all_reduce of 16 fp32, sum"}},
  };
}

/// All ranks: a barrier-like sum that must be right.
void expect_usable(World& world) {
  each_rank(static_cast<int>(world.size()), [&](int rank) {
    Communicator& c = world[static_cast<std::size_t>(rank)];
    float value = static_cast<float>(rank + 1);
    ASSERT_TRUE(succeeds(c.all_reduce(&value, &value, 1, DType::Float32)));
    EXPECT_EQ(value, static_cast<float>(c.size() * (c.size() + 1) / 2));
    EXPECT_TRUE(c.status().is_ok());
  });
}

class Mismatch : public ::testing::TestWithParam<std::tuple<int, Difference>> {
 protected:
  int ranks() const { return std::get<0>(GetParam()); }
  const Difference& difference() const { return std::get<1>(GetParam()); }
  void expect_mismatch(const Status& status, int odd) const {
    EXPECT_EQ(status.code(), Code::Mismatch) << status.to_string();
    EXPECT_NE(status.message().find("rank " + std::to_string(odd) + " called"), std::string::npos)
        << status.message();
    for (const std::string& word : difference().words)
      EXPECT_NE(status.message().find(word), std::string::npos) << status.message();
  }
};
INSTANTIATE_TEST_SUITE_P(Of, Mismatch,
                         ::testing::Combine(::testing::Values(2, 3, 4, 8),
                                            ::testing::ValuesIn(differences())),
                         [](const auto& test) {
                           return std::get<1>(test.param).name + "_" +
                                  std::to_string(std::get<0>(test.param));
                         });

TEST_P(Mismatch, EndsTheCallOnAllRanksAndTheCommunicatorGoesOn) {
  World world = make_world(ranks());
  for (int odd : {0, 1, ranks() - 1}) {
    for (int turn = 0; turn < 3; ++turn)
      each_rank(ranks(), [&](int rank) {
        Memory memory;
        const Call& call = rank == odd ? difference().odd : difference().usual;
        const auto before = memory.output;
        expect_mismatch(outcome(call(world[static_cast<std::size_t>(rank)], memory)), odd);
        EXPECT_EQ(memory.output, before) << "a failed call has changed its output";
      });
    expect_usable(world);
  }
}

TEST_P(Mismatch, DoesNotTouchCallsBeforeAndAfterIt) {
  World world = make_world(ranks());
  const int odd = ranks() / 2;
  each_rank(ranks(), [&](int rank) {
    Communicator& c = world[static_cast<std::size_t>(rank)];
    Memory first, second;
    const Call& call = rank == odd ? difference().odd : difference().usual;
    float values[3] = {1, 2, 3};
    std::vector<Work> good;
    good.push_back(c.all_reduce(&values[0], &values[0], 1, DType::Float32));
    const Work bad = call(c, first);
    good.push_back(c.all_reduce(&values[1], &values[1], 1, DType::Float32));
    const Work bad_again = call(c, second);
    good.push_back(c.all_reduce(&values[2], &values[2], 1, DType::Float32));
    expect_mismatch(outcome(bad), odd);
    expect_mismatch(outcome(bad_again), odd);
    for (const Work& work : good) EXPECT_TRUE(succeeds(work));
    for (int i = 0; i < 3; ++i) EXPECT_EQ(values[i], static_cast<float>((i + 1) * ranks()));
  });
}

class MismatchOn : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, MismatchOn, ::testing::Values(2, 3, 4, 8));

TEST_P(MismatchOn, PairCountsOfAllToAllVFailEverybody) {
  const int ranks = GetParam();
  World world = make_world(ranks);
  for (const std::size_t wrong : {std::size_t{3}, std::size_t{5}}) {  // shorter and longer
    each_rank(ranks, [&](int rank) {
      const auto size = static_cast<std::size_t>(ranks);
      std::vector<std::size_t> sends(size, 4), receives(size, 4);
      if (rank == 0) sends[size - 1] = wrong;
      std::vector<float> in(size * 4 + 1, 1), out(size * 4, -1);
      const auto before = out;
      const Status status = outcome(world[static_cast<std::size_t>(rank)].all_to_all_v(
          in.data(), sends, out.data(), receives, DType::Float32));
      EXPECT_EQ(status.code(), Code::Mismatch) << status.to_string();
      EXPECT_NE(status.message().find(std::to_string(wrong * 4)), std::string::npos)
          << status.message();
      EXPECT_NE(status.message().find("16"), std::string::npos) << status.message();
      EXPECT_EQ(out, before);
    });
    expect_usable(world);
  }
}

TEST_P(MismatchOn, OfAllAlgorithmsOfAllReduce) {
  for (const char* algorithm : {"oneshot", "twoshot", "ring", "halving", "doubling"}) {
    Config config = quiet();
    config.algorithm = algorithm;
    World world = make_world(GetParam(), config);
    for (std::size_t count : {std::size_t{10}, std::size_t{20000}}) {
      each_rank(GetParam(), [&](int rank) {
        std::vector<double> values(count + 1, rank);
        const auto before = values;
        const Status status = outcome(world[static_cast<std::size_t>(rank)].all_reduce(
            values.data(), values.data(), count + (rank == 1 ? 1 : 0), DType::Float64));
        EXPECT_EQ(status.code(), Code::Mismatch) << algorithm << ": " << status.to_string();
        EXPECT_EQ(values, before);
      });
      expect_usable(world);
    }
  }
}

TEST(MismatchOfCalls, OfSendAndReceiveFailsBothEnds) {
  World world = make_world(3);
  for (const auto& [sent, received] : {std::pair{10u, 11u}, {11u, 10u}, {0u, 1u}, {1u, 0u}}) {
    std::vector<float> out(16, 1), in(16, -1);
    const Work sending = world[0].send(out.data(), sent, DType::Float32, 1);
    const Work receiving = world[1].receive(in.data(), received, DType::Float32, 0);
    for (const Work& work : {sending, receiving}) {
      const Status status = outcome(work);
      EXPECT_EQ(status.code(), Code::Mismatch) << status.to_string();
      for (const auto count : {sent, received})
        EXPECT_NE(status.message().find("send/receive of " + std::to_string(count) + " fp32"),
                  std::string::npos)
            << status.message();
    }
    EXPECT_EQ(in, std::vector<float>(16, -1));
    // The next pair meets, and the group is usable.
    const Work next_send = world[0].send(out.data(), 3, DType::Float32, 1);
    const Work next_receive = world[1].receive(in.data(), 3, DType::Float32, 0);
    EXPECT_TRUE(succeeds(next_send) && succeeds(next_receive));
    EXPECT_EQ(in[2], 1);
    expect_usable(world);
  }
}

TEST(MismatchOfCalls, OfOnePairSparesTheMessagesOfOthers) {
  World world = make_world(3);
  std::vector<float> out(4, 5), in(4, -1);
  // Rank 2's first message to rank 1 has the same number as rank 0's, and waits there.
  const Work early = world[2].send(out.data(), 4, DType::Float32, 1);
  expect_usable(world);
  const Work sending = world[0].send(out.data(), 2, DType::Float32, 1);
  const Work receiving = world[1].receive(in.data(), 3, DType::Float32, 0);
  EXPECT_EQ(outcome(sending).code(), Code::Mismatch);
  EXPECT_EQ(outcome(receiving).code(), Code::Mismatch);
  EXPECT_TRUE(succeeds(world[1].receive(in.data(), 4, DType::Float32, 2)));
  EXPECT_TRUE(succeeds(early));
  EXPECT_EQ(in, out);
}

TEST(MismatchOfCalls, IsFoundHoweverLateARankCalls) {
  World world = make_world(4);
  Memory memory[4];
  std::vector<Work> works;
  for (std::size_t rank : {0u, 2u, 3u})
    works.push_back(
        all_reduce(16, rank == 3 ? DType::Int32 : DType::Float32)(world[rank], memory[rank]));
  for (const Work& work : works) EXPECT_EQ(outcome(work).code(), Code::Mismatch);
  // Rank 1 has heard of it, or will meet what the others have sent.
  EXPECT_EQ(outcome(all_reduce(16, DType::Float32)(world[1], memory[1])).code(), Code::Mismatch);
  expect_usable(world);
}

TEST(MismatchOfCalls, OfSplitAndCollective) {
  World world = make_world(3);
  each_rank(3, [&](int rank) {
    Communicator& c = world[static_cast<std::size_t>(rank)];
    Status status;
    if (rank == 2) {
      status = outcome(c.barrier());
    } else {
      status = thrown_by([&] { c.split(0); });
    }
    EXPECT_EQ(status.code(), Code::Mismatch) << status.to_string();
    EXPECT_NE(status.message().find("split"), std::string::npos);
  });
  expect_usable(world);
}

}  // namespace
}  // namespace tersum::test
