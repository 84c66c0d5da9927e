// Compressed all-reduces on peer memory; ranks are threads of one process, which share GPUs if need
// be.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <functional>
#include <stdexcept>
#include <string>

#include "cuda/collective_graph.hpp"
#include "cuda/compressed_all_reduce.hpp"
#include "cuda/compressed_plan.hpp"
#include "cuda/compressed_support.hpp"
#include "cuda/device.hpp"
#include "cuda/error.hpp"

namespace tersum::gpu::test {
namespace {

using std::chrono::milliseconds;

PeerSettings test_settings() {
  PeerSettings settings;
  settings.timeout = milliseconds(4'000);
  settings.cell_blocks = 16;  // ranks that share a GPU must fit on it together
  settings.push_blocks = 16;
  return settings;
}

class CompressedTest : public testing::Test {
 protected:
  void SetUp() override {
    // Ranks that share a GPU wait for each other's kernels: their streams must not share queues.
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
    if (!has_device()) GTEST_SKIP() << "no GPU";
    devices_ = static_cast<int>(devices().size());
  }

  void in_ranks(int size, const std::function<void(CompressedRank&)>& body,
                const PeerSettings& settings = test_settings()) {
    CompressedSettings compressed;
    compressed.blocks = 40;
    run_threads(size, [&](const RankRole& role) {
      CompressedRank rank(role, devices_, settings, compressed);
      body(rank);
      rank.stream().synchronize();
      // After this nobody's kernels use anybody's memory any more.
      const std::byte good{static_cast<unsigned char>(rank.peers().status().is_ok())};
      bool all_good = true;
      for (const auto& blob : role.all_gather(std::span(&good, 1))) {
        all_good = all_good && blob[0] == std::byte{1};
      }
      if (!all_good) return;
      rank.communicator().close();
      rank.peers().close();
    });
  }

  int devices_ = 1;
};

class CompressedOfRanks : public CompressedTest, public testing::WithParamInterface<int> {};

TEST_P(CompressedOfRanks, GivesTheHostsBitsForEveryMethod) {
  in_ranks(GetParam(), [](CompressedRank& rank) {
    for (const char* spec : {"fp16",
                             "bf16",
                             "fp16+ef",
                             "qint:bits=8",
                             "qint:bits=4",
                             "qint:bits=2",
                             "qint:bits=3",
                             "qint:bits=5",
                             "qint:bits=6",
                             "qint:bits=7",
                             "qint:bits=4,block=128",
                             "qint:bits=8,block=32",
                             "qint:bits=4,block=64",
                             "qint:bits=4,block=1024",
                             "qint:bits=4,block=256",
                             "qint:bits=4+ef",
                             "qint:bits=8,rounding=stochastic",
                             "qint:bits=2,rounding=stochastic",
                             "qint:bits=3,rounding=stochastic+ef",
                             "sign",
                             "sign+ef",
                             "sign:block=32",
                             "sign:block=1024+ef",
                             "sign:block=64",
                             "sign:block=128",
                             "sign:block=256"}) {
      for (const std::size_t count : {0u, 1u, 7u, 511u, 512u, 513u, 20'000u}) {
        CompressedCase test{spec, count};
        test.steps = 2;
        test.op = count % 2 == 0 ? ReduceOp::Sum : ReduceOp::Average;
        rank.check(test);
      }
    }
  });
}

TEST_P(CompressedOfRanks, TakesLargeTensorsThroughSmallQueues) {
  in_ranks(GetParam(), [](CompressedRank& rank) {
    for (const char* spec :
         {"fp16", "qint:bits=8+ef", "qint:bits=4,rounding=stochastic", "sign+ef"}) {
      CompressedCase test{spec, (1u << 20) + 3};
      test.steps = 2;
      rank.check(test);
    }
  });
}

TEST_P(CompressedOfRanks, TakesTensorsAtAnyAddressAndInPlace) {
  in_ranks(GetParam(), [](CompressedRank& rank) {
    for (const char* spec : {"bf16", "qint:bits=4+ef", "sign"}) {
      for (std::size_t shift = 0; shift < 4; ++shift) {
        CompressedCase test{spec, 70'001};
        test.shift = shift;
        test.in_place = true;
        rank.check(test);
      }
    }
  });
}

TEST_P(CompressedOfRanks, PassesOnWhatIsNotFinite) {
  in_ranks(GetParam(), [](CompressedRank& rank) {
    for (const char* spec : {"fp16+ef", "bf16", "qint:bits=8+ef", "qint:bits=4,block=32",
                             "qint:bits=4,rounding=stochastic", "sign+ef"}) {
      for (const char* input :
           {"nonfinite", "denormals", "huge", "zeros", "ties", "constant", "nan"}) {
        CompressedCase test{spec, 5'000, input};
        test.steps = 2;
        rank.check(test);
      }
    }
  });
}

TEST_P(CompressedOfRanks, ComposesWhatOneKernelCannotDo) {
  in_ranks(GetParam(), [](CompressedRank& rank) {
    for (const char* spec :
         {"qint:bits=4,block=96+ef", "qint:bits=8,block=2048,rounding=stochastic",
          "sign:block=4096+ef", "qint:bits=4+ef+momentum=0.9", "fp16+ef+momentum=0.5",
          "randomk:ratio=0.1", "randomk:ratio=0.1,scale=none+ef"}) {
      for (const std::size_t count : {1u, 95u, 97u, 30'000u}) {
        CompressedCase test{spec, count};
        test.steps = 3;
        test.op = count % 2 == 0 ? ReduceOp::Average : ReduceOp::Sum;
        rank.check(test);
      }
    }
  });
}

TEST_P(CompressedOfRanks, MergesWhatIsSparse) {
  in_ranks(GetParam(), [](CompressedRank& rank) {
    for (const char* spec : {"topk:ratio=0.01", "topk:ratio=0.05+ef", "topk:k=7+ef+momentum=0.9"}) {
      for (const std::size_t count : {0u, 1u, 7u, 511u, 20'000u, (1u << 20) + 3}) {
        for (const bool in_place : {false, true}) {
          CompressedCase test{spec, count};
          test.steps = 3;
          test.in_place = in_place;
          test.shift = count % 3;
          test.op = in_place ? ReduceOp::Average : ReduceOp::Sum;
          rank.check(test);
        }
      }
    }
  });
}

/// `calls` all-reduces of `inputs`, one for each rank, captured when all ranks are ready.
Graph captured(CompressedRank& rank, CompressedAllReduce& gradient,
               const std::vector<Floats>& inputs, ReduceOp op, int calls) {
  const Floats& own = inputs[static_cast<std::size_t>(rank.rank())];
  rank.write(rank.input(), own);
  rank.warm_up(gradient.method(), own.size());
  rank.meet();
  return Graph(rank.stream(), [&] {
    for (int i = 0; i < calls; ++i)
      gradient.all_reduce(rank.input(), rank.output(), op, rank.stream());
  });
}

TEST_P(CompressedOfRanks, EachReplayOfAGraphIsTheNextStep) {
  in_ranks(GetParam(), [](CompressedRank& rank) {
    for (const char* spec : {"qint:bits=4,rounding=stochastic", "qint:bits=3+ef", "sign+ef",
                             "topk:ratio=0.02+ef", "fp16"}) {
      CompressedCase test{spec, 9'000};
      HostExchange host(spec, test.count, rank.size());
      CompressedAllReduce gradient(rank.communicator(), host.compressor(), test.count, 7, 8,
                                   rank.stream());
      const auto inputs = make_inputs(test, rank.size(), 0);
      const Graph graph = captured(rank, gradient, inputs, ReduceOp::Average, 3);
      rank.meet();
      Floats wanted;
      for (std::uint64_t step = 0; step < 30; ++step) {
        if (step % 3 == 0) graph.launch(rank.stream());
        wanted = host.step(inputs, ReduceOp::Average, {7, step, 8, 0, 0});
        if (step % 3 != 2) continue;
        expect_same(rank.read(rank.output(), test.count), wanted, test.to_string());
      }
      rank.meet();
    }
  });
}

TEST_P(CompressedOfRanks, EachReplayOfAGraphDrawsAfreshInEveryForm) {
  in_ranks(GetParam(), [](CompressedRank& rank) {
    for (const char* spec :
         {"randomk:ratio=0.1", "randomk:k=77,scale=unbiased", "qint:bits=8,rounding=stochastic",
          "qint:bits=4,block=96,rounding=stochastic+ef",
          "qint:bits=3,block=1024,rounding=stochastic",
          "qint:bits=2,block=2048,rounding=stochastic+ef",
          "qint:bits=4,block=64,rounding=stochastic+ef+momentum=0.9",
          "qint:bits=8,block=256,rounding=stochastic+ef+momentum=0.5"}) {
      const CompressedCase test{spec, 9'001};
      HostExchange host(spec, test.count, rank.size());
      CompressedAllReduce gradient(rank.communicator(), host.compressor(), test.count, 7, 8,
                                   rank.stream());
      const auto inputs = make_inputs(test, rank.size(), 0);
      const Graph graph = captured(rank, gradient, inputs, ReduceOp::Sum, 1);
      rank.meet();
      for (std::uint64_t step = 0; step < 3; ++step) {
        graph.launch(rank.stream());
        expect_same(rank.read(rank.output(), test.count),
                    host.step(inputs, ReduceOp::Sum, {7, step, 8, 0, 0}),
                    test.to_string() + " in step " + std::to_string(step));
      }
      rank.meet();
    }
  });
}

TEST_P(CompressedOfRanks, GoesOnFromSavedBytes) {
  in_ranks(GetParam(), [](CompressedRank& rank) {
    const CompressedCase test{"qint:bits=2,rounding=stochastic+ef", 5'000};
    HostExchange host(test.spec, test.count, rank.size());
    const auto make = [&] {
      return CompressedAllReduce(rank.communicator(), host.compressor(), test.count, 7, 8,
                                 rank.stream());
    };
    CompressedAllReduce first = make(), second = make();
    const auto inputs = make_inputs(test, rank.size(), 0);
    rank.write(rank.input(), inputs[static_cast<std::size_t>(rank.rank())]);
    rank.meet();
    first.all_reduce(rank.input(), rank.output(), ReduceOp::Sum, rank.stream());
    host.step(inputs, ReduceOp::Sum, {7, 0, 8, 0, 0});
    const auto saved = first.save(rank.stream());
    EXPECT_THROW(second.load(std::span(saved).first(saved.size() - 1), rank.stream()), Error);
    second.load(saved, rank.stream());
    rank.meet();
    second.all_reduce(rank.input(), rank.output(), ReduceOp::Sum, rank.stream());
    expect_same(rank.read(rank.output(), test.count),
                host.step(inputs, ReduceOp::Sum, {7, 1, 8, 0, 0}), "after load");
    EXPECT_EQ(second.save(rank.stream()).size(), saved.size());
    rank.meet();
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, CompressedOfRanks, testing::Values(1, 2, 3, 4),
                         testing::PrintToStringParamName());

TEST_F(CompressedTest, TwoCommunicatorsRunAtOnce) {
  run_threads(2, [&](const RankRole& role) {
    CompressedRank first(role, devices_, test_settings(), {40});
    CompressedRank second(role, devices_, test_settings(), {40});
    const CompressedMethod method(make_compressor("qint:bits=4"));
    CompressedSlice slice;
    slice.count = 300'000;
    slice.context.rank = static_cast<std::uint32_t>(role.rank);
    for (int i = 0; i < 100; ++i) {  // the ranks submit to the two in different order
      for (CompressedRank* rank :
           {role.rank == 0 ? &first : &second, role.rank == 0 ? &second : &first}) {
        slice.input = rank->input();
        slice.output = rank->output();
        rank->communicator().all_reduce(method, slice, ReduceOp::Sum, rank->stream());
      }
    }
    first.stream().synchronize();
    second.stream().synchronize();
    first.check({"qint:bits=4", 10'000});
    second.check({"sign", 10'000});
    for (CompressedRank* rank : {&second, &first}) {
      rank->communicator().close();
      rank->peers().close();
    }
  });
}

TEST_F(CompressedTest, ASilentRankEndsTheOthersWithTimeout) {
  PeerSettings settings = test_settings();
  settings.timeout = milliseconds(200);
  in_ranks(
      2,
      [](CompressedRank& rank) {
        if (rank.rank() == 1) return rank.peers().abort();  // never comes
        const CompressedMethod method(make_compressor("qint:bits=4"));
        CompressedSlice slice;
        slice.input = rank.input();
        slice.output = rank.output();
        slice.count = 500'000;
        for (int i = 0; i < 20; ++i) {
          rank.communicator().all_reduce(method, slice, ReduceOp::Sum, rank.stream());
        }
        rank.stream().synchronize();
        EXPECT_EQ(rank.peers().status().code(), Code::Timeout);
        EXPECT_EQ(rank.peers().status().rank(), 1);
        rank.write(rank.input(), Floats(100, 1.0f));  // the context still works
      },
      settings);
}

TEST_F(CompressedTest, AbortEndsWhatRuns) {
  in_ranks(2, [](CompressedRank& rank) {
    if (rank.rank() == 0) {
      const CompressedMethod method(make_compressor("sign"));
      CompressedSlice slice;
      slice.input = rank.input();
      slice.output = rank.output();
      slice.count = 500'000;
      rank.communicator().all_reduce(method, slice, ReduceOp::Sum, rank.stream());
      EXPECT_FALSE(rank.stream().is_done());
    }
    rank.peers().abort();
    rank.stream().synchronize();
    if (rank.rank() == 0) {
      EXPECT_EQ(rank.peers().status().code(), Code::Aborted);
    }
  });
}

TEST_F(CompressedTest, RefusesArgumentsThatCannotBeRight) {
  in_ranks(1, [](CompressedRank& rank) {
    const CompressedMethod method(make_compressor("qint:bits=4+ef"));
    const auto state = method.make_state(100, rank.stream(), TwinState::Steps::Final);
    const auto call = [&](const CompressedSlice& slice, ReduceOp op) {
      rank.communicator().all_reduce(method, slice, op, rank.stream());
    };
    CompressedSlice slice;
    slice.input = rank.input();
    slice.output = rank.output();
    slice.count = 100;
    slice.state = slice.reducer_state = state.get();
    EXPECT_THROW(call(slice, ReduceOp::Max), Error);
    slice.context.offset = 1;
    EXPECT_THROW(call(slice, ReduceOp::Sum), Error);
    slice.context.offset = 0;
    slice.reducer_state = nullptr;
    EXPECT_THROW(call(slice, ReduceOp::Sum), Error);
    slice.reducer_state = state.get();
    slice.output = nullptr;
    EXPECT_THROW(call(slice, ReduceOp::Sum), Error);
    slice.count = 0;
    call(slice, ReduceOp::Sum);
    EXPECT_THROW(CompressedCommunicator(rank.peers(), {}, {-1}), Error);
  });
}

// Without a GPU, too.

TEST(CompressedPlan, SharesOutWholeBlocksEvenly) {
  for (const std::size_t count : {0u, 1u, 511u, 512u, 513u, 5'000u, 1u << 20}) {
    for (int ranks = 1; ranks <= kMaxPeers; ++ranks) {
      std::uint64_t begin[kMaxPeers + 1];
      share_out(count, 512, ranks, begin);
      EXPECT_EQ(begin[0], 0u);
      EXPECT_EQ(begin[ranks], count);
      for (int r = 0; r < ranks; ++r) {
        EXPECT_LE(begin[r], begin[r + 1]);
        EXPECT_TRUE(begin[r] % 512 == 0 || begin[r] == count);
        EXPECT_LE(begin[r + 1] - begin[r], begin[1]);
      }
    }
  }
}

TEST(CompressedPlan, FindsTheFormOfEveryMethod) {
  using Form = CompressedMethod::Form;
  const auto form = [](const char* spec) { return CompressedMethod(make_compressor(spec)).form(); };
  EXPECT_EQ(form("fp16+ef"), Form::Fused);
  EXPECT_EQ(form("qint:bits=4,block=512,rounding=stochastic+ef"), Form::Fused);
  EXPECT_EQ(form("sign:block=32"), Form::Fused);
  EXPECT_EQ(form("sign:block=96"), Form::Composed);
  EXPECT_EQ(form("qint:bits=4,block=1024"), Form::Composed);
  EXPECT_EQ(form("qint:bits=4+ef+momentum=0.9"), Form::Composed);
  EXPECT_EQ(form("randomk:ratio=0.1"), Form::Linear);
  EXPECT_EQ(form("topk:ratio=0.1+ef"), Form::Sparse);
  EXPECT_THROW(form("none"), Error);
}

TEST(CompressedPlan, FeedsBackSumsOnlyOfBiasedMethods) {
  const auto feeds_back = [](const char* spec) {
    return CompressedMethod(make_compressor(spec)).feeds_back_sums();
  };
  EXPECT_TRUE(feeds_back("qint:bits=4+ef"));
  EXPECT_TRUE(feeds_back("sign+ef+momentum=0.9"));
  EXPECT_FALSE(feeds_back("qint:bits=4"));
  EXPECT_FALSE(feeds_back("qint:bits=4,rounding=stochastic+ef"));
  EXPECT_FALSE(feeds_back("fp16+ef"));
  EXPECT_FALSE(feeds_back("topk:ratio=0.1+ef"));
}

TEST(CompressedPlan, DividesAveragesExactly) {
  const CompressedMethod method(make_compressor("qint:bits=4"));
  CompressedSlice slice;
  slice.count = 3'000;
  EXPECT_EQ(plan_tiles(method, slice, ReduceOp::Average, 4).factor, 0.25f);
  EXPECT_EQ(plan_tiles(method, slice, ReduceOp::Average, 4).divisor, 1.0f);
  EXPECT_EQ(plan_tiles(method, slice, ReduceOp::Average, 3).divisor, 3.0f);
  EXPECT_EQ(plan_tiles(method, slice, ReduceOp::Sum, 3).divisor, 1.0f);
  EXPECT_EQ(plan_tiles(method, slice, ReduceOp::Sum, 2).runs, 3u);
}

}  // namespace
}  // namespace tersum::gpu::test
