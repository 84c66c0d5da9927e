// All-reduce: every algorithm, dtype, operator, number of ranks, and a spread of counts, against
// values computed apart from it.
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "src/numbers.hpp"
#include "src/support.hpp"

namespace tersum::test {
namespace {

using Bytes = std::vector<std::byte>;

const char* const kAlgorithms[] = {"auto", "direct",  "oneshot", "twoshot",
                                   "ring", "halving", "doubling"};

/// One call, the same on all ranks.
struct Case {
  DType dtype;
  ReduceOp op;
  std::size_t count;
  std::vector<Bytes> inputs;
  Bytes expected;

  std::string name() const {
    return std::string(to_string(op)) + " of " + std::to_string(count) + " " +
           std::string(to_string(dtype));
  }
};

Case make_case(DType dtype, ReduceOp op, std::size_t count, int ranks) {
  Case c{dtype, op, count, {}, {}};
  for (int r = 0; r < ranks; ++r) c.inputs.push_back(pattern(dtype, op, r, count));
  c.expected = reduced(dtype, op, c.inputs, count);
  return c;
}

std::vector<Case> small_cases(int ranks) {
  std::vector<Case> cases;
  for (DType dtype : kAllDTypes)
    for (ReduceOp op : kAllOps)
      for (std::size_t count : {0, 1, 2, 3, 7, ranks - 1, 1000})
        if (has_meaning(dtype, op)) cases.push_back(make_case(dtype, op, count, ranks));
  return cases;
}

std::vector<Case> large_cases(int ranks, bool direct) {
  std::vector<Case> cases;
  for (DType dtype : {DType::Int8, DType::Bool, DType::BFloat16, DType::Float32})
    cases.push_back(make_case(dtype, ReduceOp::Sum, 70001, ranks));
  cases.push_back(make_case(DType::Int32, ReduceOp::Average, 70001, ranks));
  cases.push_back(make_case(DType::Float64, ReduceOp::Average, 70001, ranks));
  if (ranks == 2 || ranks == 3) {  // beyond 4 MiB; the direct algorithm cuts shares of that size
    const auto shares = static_cast<std::size_t>(direct ? ranks : 1);
    cases.push_back(make_case(DType::Int8, ReduceOp::Sum, shares * (4u << 20) + 5, ranks));
  }
  return cases;
}

void check_case(Communicator& communicator, const Case& c, bool in_place) {
  const auto rank = static_cast<std::size_t>(communicator.rank());
  const Bytes& own = c.inputs[rank];
  Guarded input(own.size()), output(own.size());
  if (!own.empty()) std::memcpy(input.data(), own.data(), own.size());
  std::byte* to = in_place ? input.data() : output.data();
  const Work work = communicator.all_reduce(input.data(), to, c.count, c.dtype, c.op);
  ASSERT_TRUE(succeeds(work)) << c.name();
  EXPECT_TRUE(same_bytes({to, own.size()}, c.expected))
      << c.name() << (in_place ? ", in place" : "") << ", rank " << rank;
  EXPECT_TRUE(in_place || same_bytes(input.view(), own)) << "the input has changed: " << c.name();
  EXPECT_TRUE(input.intact() && output.intact()) << "written outside: " << c.name();
}

class AllReduce : public ::testing::TestWithParam<std::tuple<int, const char*>> {
 protected:
  int ranks() const { return std::get<0>(GetParam()); }
  World world() const {
    Config config = quiet();
    config.algorithm = std::get<1>(GetParam());
    return make_world(ranks(), config);
  }
  void check(const std::vector<Case>& cases) {
    World all = world();
    each_rank(ranks(), [&](int rank) {
      for (const Case& c : cases)
        for (bool in_place : {false, true}) {
          check_case(all[static_cast<std::size_t>(rank)], c, in_place);
          if (::testing::Test::HasFatalFailure()) return;
        }
    });
  }
};
INSTANTIATE_TEST_SUITE_P(Every, AllReduce,
                         ::testing::Combine(::testing::Values(1, 2, 3, 4, 5, 8),
                                            ::testing::ValuesIn(kAlgorithms)),
                         [](const auto& test) {
                           return std::string(std::get<1>(test.param)) + "_" +
                                  std::to_string(std::get<0>(test.param));
                         });

TEST_P(AllReduce, EqualsTheReferenceForSmallCounts) {
  check(small_cases(ranks()));
}

TEST_P(AllReduce, EqualsTheReferenceForLargeCounts) {
  check(large_cases(ranks(), std::get<1>(GetParam()) == std::string("direct")));
}

/// Floats of all magnitudes with zeros of both signs, infinities and NaNs of many payloads.
Bytes wild_floats(DType dtype, int rank, std::size_t count) {
  std::mt19937_64 random(static_cast<std::uint64_t>(rank) + 100);
  Bytes data(count * element_bytes(dtype));
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t bits = random();
    if (bits % 16 == 0 && dtype == DType::Float32)
      store_as(&data[i * 4], 0x7f800001u | static_cast<std::uint32_t>(bits >> 32));
    else if (bits % 16 == 0 && dtype == DType::Float64)
      store_as(&data[i * 8], 0x7ff0000000000001ull | bits);
    else if (bits % 16 == 1)
      put(dtype, data.data(), i, bits & 32 ? 0.0 : -0.0, 0);
    else
      put(dtype, data.data(), i,
          std::ldexp(static_cast<double>(bits >> 11) / 9007199254740992.0 - 0.5,
                     static_cast<int>(bits / 16 % 20) - 10),
          0);
  }
  return data;
}

TEST_P(AllReduce, GivesAllRanksTheSameBits) {
  World all = world();
  for (DType dtype : {DType::Float16, DType::BFloat16, DType::Float32, DType::Float64})
    for (std::size_t count : {5u, 1000u, 9001u}) {
      std::vector<std::vector<Bytes>> outputs(all.size());
      each_rank(ranks(), [&](int rank) {
        const auto r = static_cast<std::size_t>(rank);
        const Bytes input = wild_floats(dtype, rank, count);
        for (ReduceOp op : kAllOps) {
          Bytes& output = outputs[r].emplace_back(input.size());
          EXPECT_TRUE(succeeds(all[r].all_reduce(input.data(), output.data(), count, dtype, op)));
        }
      });
      for (const auto& rank : outputs)
        for (ReduceOp op : kAllOps) {
          const auto i = static_cast<std::size_t>(op);
          EXPECT_TRUE(same_bytes(rank[i], outputs[0][i]))
              << to_string(op) << " of " << count << " " << to_string(dtype);
        }
    }
}

TEST(DirectAllReduce, SumsInRankOrderWithScales) {
  // With the direct algorithm the exact bits are defined: fp32 sums in rank order, one rounding.
  constexpr int kRanks = 5;
  Config config = quiet();
  config.algorithm = "direct";
  World world = make_world(kRanks, config);
  for (DType dtype : {DType::Float16, DType::BFloat16, DType::Float32, DType::Float64})
    for (std::size_t count : {std::size_t{3}, std::size_t{30011}}) {
      std::vector<Bytes> inputs;
      for (int r = 0; r < kRanks; ++r) {
        std::mt19937 random(static_cast<unsigned>(r));
        std::normal_distribution<double> draw;
        inputs.emplace_back(count * element_bytes(dtype));
        for (std::size_t i = 0; i < count; ++i)
          put(dtype, inputs.back().data(), i, draw(random), 0);
      }
      const Bytes expected = reduced(dtype, ReduceOp::Average, inputs, count, 0.7, 3.0);
      each_rank(kRanks, [&](int rank) {
        const auto r = static_cast<std::size_t>(rank);
        CallOptions options;
        options.pre_scale = 0.7;
        options.post_scale = 3.0;
        Bytes output(expected.size());
        EXPECT_TRUE(succeeds(world[r].all_reduce(inputs[r].data(), output.data(), count, dtype,
                                                 ReduceOp::Average, options)));
        EXPECT_TRUE(same_bytes(output, expected)) << to_string(dtype) << " " << count;
      });
    }
}

TEST(AllReduceAlgorithms, ScaleLikeEachOther) {
  for (const char* algorithm : kAlgorithms) {
    Config config = quiet();
    config.algorithm = algorithm;
    World world = make_world(3, config);
    each_rank(3, [&](int rank) {
      CallOptions options;
      options.pre_scale = 0.5;
      options.post_scale = 4.0;
      std::vector<float> values(101, static_cast<float>(rank + 1));
      EXPECT_TRUE(succeeds(world[static_cast<std::size_t>(rank)].all_reduce(
          values.data(), values.data(), values.size(), DType::Float32, ReduceOp::Sum, options)));
      for (float value : values) EXPECT_EQ(value, 12.0f) << algorithm;
    });
  }
}

TEST(AllReduceAlgorithms, AnUnknownNameIsRefusedByName) {
  Config config = quiet();
  config.algorithm = "tree";
  World world = make_world(1, config);
  float value = 1;
  const Status status = thrown_by([&] { world[0].all_reduce(&value, &value, 1, DType::Float32); });
  EXPECT_EQ(status.code(), Code::InvalidArgument);
  EXPECT_NE(status.message().find("tree"), std::string::npos);
  EXPECT_NE(status.message().find("halving"), std::string::npos);
}

TEST(AllReduceAlgorithms, RunOverTransportsThatDelayAndReorder) {
  for (const char* algorithm : kAlgorithms) {
    Config config = quiet();
    config.algorithm = algorithm;
    std::vector<transport::FaultPlan> plans(5);
    for (std::size_t r = 0; r < plans.size(); ++r) {
      plans[r].seed = r + 1;
      plans[r].max_delay = 20;
      plans[r].reorder = true;
    }
    World world = make_faulty_world(plans, config);
    std::vector<Case> cases;
    for (std::size_t count : {1u, 40u, 30000u}) {
      cases.push_back(make_case(DType::Float32, ReduceOp::Sum, count, 5));
      cases.push_back(make_case(DType::Int16, ReduceOp::Max, count, 5));
    }
    each_rank(5, [&](int rank) {
      for (int turn = 0; turn < 3; ++turn)
        for (const Case& c : cases) check_case(world[static_cast<std::size_t>(rank)], c, true);
    });
  }
}

}  // namespace
}  // namespace tersum::test
