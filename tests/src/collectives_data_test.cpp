// All collectives but all-reduce, on all dtypes and a spread of ranks and counts, against values
// computed apart from them.
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include "src/numbers.hpp"
#include "src/support.hpp"

namespace tersum::test {
namespace {

using Bytes = std::vector<std::byte>;

/// `count` elements that only rank `rank` has; `part` tells its parts from each other.
Bytes values_of(DType dtype, int rank, std::size_t count, int part = 0) {
  return pattern(dtype, ReduceOp::Sum, rank * 3 + part * 7, count);
}

void append(Bytes& to, const Bytes& more) {
  to.insert(to.end(), more.begin(), more.end());
}

/// Bytes between guards, with contents.
Guarded guarded(const Bytes& contents) {
  Guarded memory(contents.size());
  if (!contents.empty()) std::memcpy(memory.data(), contents.data(), contents.size());
  return memory;
}

/// The inputs of all ranks to a reduction, and what they are reduced to.
struct Reduced {
  std::vector<Bytes> inputs;
  Bytes whole;
};

/// Made once for all ranks, which ask for the same ones.
class ReducedOnce {
 public:
  const Reduced& get(DType dtype, ReduceOp op, std::size_t count, int ranks) {
    std::lock_guard lock(mutex_);
    auto [it, is_new] = made_.try_emplace({dtype, op, count});
    if (is_new) {
      for (int r = 0; r < ranks; ++r) it->second.inputs.push_back(values_of(dtype, r, count));
      it->second.whole = reduced(dtype, op, it->second.inputs, count);
    }
    return it->second;
  }

 private:
  std::mutex mutex_;
  std::map<std::tuple<DType, ReduceOp, std::size_t>, Reduced> made_;
};

/// Large ones for sums only.
bool worth_it(DType dtype, ReduceOp op, std::size_t count) {
  return has_meaning(dtype, op) && (count < 2000 || op == ReduceOp::Sum);
}

class Collective : public ::testing::TestWithParam<int> {
 protected:
  int ranks() const { return GetParam(); }
  std::size_t size() const { return static_cast<std::size_t>(GetParam()); }
  std::vector<std::size_t> counts() const { return {0, 1, 2, 3, 7, size() - 1, 1000, 70001}; }
  /// Calls function(communicator, dtype, count) on all ranks, for all dtypes and counts; the
  /// largest counts for a few dtypes only.
  template <class Function>
  void everywhere(const Function& function) {
    World world = make_world(ranks());
    each_rank(ranks(), [&](int rank) {
      Communicator& communicator = world[static_cast<std::size_t>(rank)];
      for (DType dtype : kAllDTypes)
        for (std::size_t count : counts())
          if (count < 2000 || dtype == DType::Float32) function(communicator, dtype, count);
      if (ranks() <= 3) function(communicator, DType::Int8, (4u << 20) + 5);
    });
  }
};
INSTANTIATE_TEST_SUITE_P(On, Collective, ::testing::Values(1, 2, 3, 4, 5, 8),
                         [](const auto& test) { return std::to_string(test.param) + "Ranks"; });

std::string label(const Communicator& c, DType dtype, std::size_t count) {
  return "rank " + std::to_string(c.rank()) + ", " + std::to_string(count) + " " +
         std::string(to_string(dtype));
}

TEST_P(Collective, ReduceScatterGivesEachRankItsPart) {
  ReducedOnce references;
  everywhere([&](Communicator& c, DType dtype, std::size_t count) {
    for (ReduceOp op : {ReduceOp::Sum, ReduceOp::Average, ReduceOp::Max}) {
      if (!worth_it(dtype, op, count)) continue;
      const auto& [inputs, whole] = references.get(dtype, op, count * size(), ranks());
      const std::size_t bytes = count * element_bytes(dtype);
      const std::size_t at = bytes * static_cast<std::size_t>(c.rank());
      const Bytes& own = inputs[static_cast<std::size_t>(c.rank())];
      for (bool in_place : {false, true}) {
        Guarded input = guarded(own), output(bytes);
        std::byte* to = in_place ? input.data() + at : output.data();
        ASSERT_TRUE(succeeds(c.reduce_scatter(input.data(), to, count, dtype, op)));
        EXPECT_TRUE(same_bytes({to, bytes}, std::span(whole).subspan(at, bytes)))
            << label(c, dtype, count) << " " << to_string(op);
        Bytes expected = own;
        if (in_place && bytes > 0) std::memcpy(expected.data() + at, whole.data() + at, bytes);
        EXPECT_TRUE(same_bytes(input.view(), expected)) << "input: " << label(c, dtype, count);
        EXPECT_TRUE(input.intact() && output.intact());
      }
    }
  });
}

TEST_P(Collective, AllGatherLaysPartsInRankOrder) {
  everywhere([&](Communicator& c, DType dtype, std::size_t count) {
    Bytes whole;
    for (int r = 0; r < ranks(); ++r) append(whole, values_of(dtype, r, count));
    const Bytes own = values_of(dtype, c.rank(), count);
    for (bool in_place : {false, true}) {
      Guarded input = guarded(own), output(whole.size());
      const std::byte* from = input.data();
      if (in_place) {
        std::byte* part = output.data() + own.size() * static_cast<std::size_t>(c.rank());
        if (!own.empty()) std::memcpy(part, own.data(), own.size());
        from = part;
      }
      ASSERT_TRUE(succeeds(c.all_gather(from, output.data(), count, dtype)));
      EXPECT_TRUE(same_bytes(output.view(), whole)) << label(c, dtype, count);
      EXPECT_TRUE(same_bytes(input.view(), own) && input.intact() && output.intact());
    }
  });
}

TEST_P(Collective, AllGatherVTakesAnyCounts) {
  everywhere([&](Communicator& c, DType dtype, std::size_t count) {
    std::vector<std::size_t> per_rank(size());
    Bytes whole;
    for (int r = 0; r < ranks(); ++r) {  // some ranks give nothing
      const auto i = static_cast<std::size_t>(r);
      per_rank[i] = r % 3 == 1 ? 0 : count + i;
      append(whole, values_of(dtype, r, per_rank[i]));
    }
    const Bytes own = values_of(dtype, c.rank(), per_rank[static_cast<std::size_t>(c.rank())]);
    Guarded input = guarded(own), output(whole.size());
    ASSERT_TRUE(succeeds(
        c.all_gather_v(own.empty() ? nullptr : input.data(), output.data(), per_rank, dtype)));
    EXPECT_TRUE(same_bytes(output.view(), whole)) << label(c, dtype, count);
    EXPECT_TRUE(same_bytes(input.view(), own) && input.intact() && output.intact());
  });
}

TEST_P(Collective, BroadcastCopiesEveryRoot) {
  everywhere([&](Communicator& c, DType dtype, std::size_t count) {
    for (int root = 0; root<ranks(); root += count> 1000 ? 3 : 1) {
      const Bytes expected = values_of(dtype, root, count, 1);
      Guarded data = guarded(values_of(dtype, c.rank(), count, c.rank() == root ? 1 : 2));
      ASSERT_TRUE(succeeds(c.broadcast(data.data(), count, dtype, root)));
      EXPECT_TRUE(same_bytes(data.view(), expected)) << label(c, dtype, count) << " root " << root;
      EXPECT_TRUE(data.intact());
    }
  });
}

TEST_P(Collective, ReduceGivesTheRootTheResult) {
  ReducedOnce references;
  everywhere([&](Communicator& c, DType dtype, std::size_t count) {
    for (ReduceOp op : {ReduceOp::Sum, ReduceOp::Average, ReduceOp::Min}) {
      if (!worth_it(dtype, op, count)) continue;
      const int root = static_cast<int>(count + static_cast<std::size_t>(op)) % ranks();
      const auto& [inputs, expected] = references.get(dtype, op, count, ranks());
      const Bytes& own = inputs[static_cast<std::size_t>(c.rank())];
      const bool is_root = c.rank() == root;
      for (bool in_place : {false, true}) {
        Guarded input = guarded(own), output(own.size());
        std::byte* to = in_place ? input.data() : output.data();
        ASSERT_TRUE(
            succeeds(c.reduce(input.data(), is_root ? to : nullptr, count, dtype, op, root)));
        if (is_root) {
          EXPECT_TRUE(same_bytes({to, own.size()}, expected)) << label(c, dtype, count);
        }
        if (!is_root || !in_place) {
          EXPECT_TRUE(same_bytes(input.view(), own)) << "input: " << label(c, dtype, count);
        }
        EXPECT_TRUE(input.intact() && output.intact());
      }
    }
  });
}

TEST_P(Collective, AllToAllTransposesParts) {
  everywhere([&](Communicator& c, DType dtype, std::size_t count) {
    Bytes own, expected;
    for (int r = 0; r < ranks(); ++r) {
      append(own, values_of(dtype, c.rank(), count, r));
      append(expected, values_of(dtype, r, count, c.rank()));
    }
    Guarded input = guarded(own), output(expected.size());
    ASSERT_TRUE(succeeds(c.all_to_all(input.data(), output.data(), count, dtype)));
    EXPECT_TRUE(same_bytes(output.view(), expected)) << label(c, dtype, count);
    EXPECT_TRUE(same_bytes(input.view(), own) && input.intact() && output.intact());
  });
}

TEST_P(Collective, AllToAllVTakesAnyCounts) {
  everywhere([&](Communicator& c, DType dtype, std::size_t count) {
    // From a to b: nothing for some pairs.
    const auto between = [&](int a, int b) {
      return (a + 2 * b) % 3 == 0 ? 0 : count / size() + static_cast<std::size_t>(a + b);
    };
    std::vector<std::size_t> sends(size()), receives(size());
    Bytes own, expected;
    for (int r = 0; r < ranks(); ++r) {
      const auto i = static_cast<std::size_t>(r);
      sends[i] = between(c.rank(), r);
      receives[i] = between(r, c.rank());
      append(own, values_of(dtype, c.rank(), sends[i], r));
      append(expected, values_of(dtype, r, receives[i], c.rank()));
    }
    Guarded input = guarded(own), output(expected.size());
    ASSERT_TRUE(succeeds(c.all_to_all_v(input.data(), sends, output.data(), receives, dtype)));
    EXPECT_TRUE(same_bytes(output.view(), expected)) << label(c, dtype, count);
    EXPECT_TRUE(same_bytes(input.view(), own) && input.intact() && output.intact());
  });
}

TEST_P(Collective, NobodyLeavesABarrierBeforeAllHaveCome) {
  World world = make_world(ranks());
  std::atomic<int> came{0};
  each_rank(ranks(), [&](int rank) {
    for (int turn = 1; turn <= 50; ++turn) {
      came.fetch_add(1);
      ASSERT_TRUE(succeeds(world[static_cast<std::size_t>(rank)].barrier()));
      EXPECT_GE(came.load(), turn * ranks());
    }
  });
}

TEST_P(Collective, ManyOperationsOfOneCommunicatorAreInFlightAtOnce) {
  constexpr int kCalls = 60;
  World world = make_world(ranks());
  each_rank(ranks(), [&](int rank) {
    Communicator& c = world[static_cast<std::size_t>(rank)];
    std::vector<std::vector<float>> sums(kCalls), gathered(kCalls);
    std::vector<std::vector<std::int64_t>> sent(kCalls);
    std::vector<Work> works;
    for (int i = 0; i < kCalls; ++i) {
      const auto call = static_cast<std::size_t>(i);
      const std::size_t count = i % 7 == 0 ? 40000 : call + 1;
      sums[call].assign(count, static_cast<float>(rank + i));
      works.push_back(c.all_reduce(sums[call].data(), sums[call].data(), count, DType::Float32));
      sent[call].assign(3, rank == i % ranks() ? i : -1);
      works.push_back(c.broadcast(sent[call].data(), 3, DType::Int64, i % ranks()));
      gathered[call].assign(size() * 2, static_cast<float>(rank));
      works.push_back(
          c.all_gather(gathered[call].data() + 2 * rank, gathered[call].data(), 2, DType::Float32));
    }
    for (const Work& work : works) EXPECT_TRUE(succeeds(work));
    const float ranks_sum = static_cast<float>(ranks() * (ranks() - 1) / 2);
    for (int i = 0; i < kCalls; ++i) {
      const auto call = static_cast<std::size_t>(i);
      for (float v : sums[call]) ASSERT_EQ(v, ranks_sum + static_cast<float>(i * ranks()));
      for (std::int64_t v : sent[call]) ASSERT_EQ(v, i);
      for (std::size_t r = 0; r < size(); ++r)
        ASSERT_EQ(gathered[call][2 * r + 1], static_cast<float>(r));
    }
  });
}

TEST_P(Collective, SentBytesCountWhatGoesToOthers) {
  World world = make_world(ranks());
  each_rank(ranks(), [&](int rank) {
    Communicator& c = world[static_cast<std::size_t>(rank)];
    EXPECT_EQ(c.sent_bytes(), 0u);
    std::vector<double> all(size() * 10);
    EXPECT_TRUE(succeeds(c.all_gather(all.data() + 10 * rank, all.data(), 10, DType::Float64)));
    EXPECT_EQ(c.sent_bytes(), 80u * (size() - 1));
  });
}

TEST(Communicator, KnowsItsRanks) {
  World world = make_world(3);
  for (int r = 0; r < 3; ++r) {
    const Communicator& c = world[static_cast<std::size_t>(r)];
    EXPECT_TRUE(c.valid());
    EXPECT_EQ(c.rank(), r);
    EXPECT_EQ(c.size(), 3);
    EXPECT_EQ(c.world_rank(2), 2);
    EXPECT_TRUE(c.status().is_ok());
  }
}

}  // namespace
}  // namespace tersum::test
