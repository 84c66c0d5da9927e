// Collectives on peer memory; ranks are threads of one process, which share GPUs if need be.
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <stdexcept>
#include <string>
#include <thread>
#include <tuple>

#include "cuda/collective_cases.hpp"
#include "cuda/collective_graph.hpp"
#include "cuda/collective_layout.hpp"
#include "cuda/device.hpp"
#include "cuda/error.hpp"

namespace tersum::gpu {
namespace {

using std::chrono::milliseconds;

PeerSettings test_settings() {
  PeerSettings settings;
  settings.timeout = milliseconds(4'000);
  settings.cell_blocks = 16;  // ranks that share a GPU must fit on it together
  settings.push_blocks = 16;
  settings.staging_bytes = std::size_t{1} << 20;
  settings.staging_blocks = 16;
  return settings;
}

class CollectiveTest : public testing::Test {
 protected:
  void SetUp() override {
    // Ranks that share a GPU wait for each other's kernels: their streams must not share queues.
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
    if (!has_device()) GTEST_SKIP() << "no GPU";
    devices_ = static_cast<int>(devices().size());
  }

  void in_ranks(int size, const std::function<void(CollectiveRank&)>& body,
                const PeerSettings& settings = test_settings()) {
    run_threads(size, [&](const RankRole& role) {
      CollectiveRank rank(role, devices_, settings);
      body(rank);
      rank.stream().synchronize();
      // After this nobody's kernels use anybody's memory any more.
      const std::byte good{static_cast<unsigned char>(rank.communicator().status().is_ok())};
      bool all_good = true;
      for (const auto& blob : role.all_gather(std::span(&good, 1))) {
        all_good = all_good && blob[0] == std::byte{1};
      }
      if (all_good) rank.communicator().close();
    });
  }

  int devices_ = 1;
};

using Words = std::vector<std::uint32_t>;

/// The input is `words`, the output zero. Pageable memory: when nothing is under way.
void put_words(CollectiveRank& rank, const Words& words) {
  const std::size_t bytes = words.size() * 4;
  const cudaStream_t s = rank.stream().get();
  check(cudaMemcpyAsync(rank.input(), words.data(), bytes, cudaMemcpyDefault, s), "copy");
  check(cudaMemsetAsync(rank.output(), 0, bytes, s), "set");
}

/// When all is done: `words`, but for the first `bytes`, which are the output's.
Words get_words(CollectiveRank& rank, Words words, std::size_t bytes) {
  const StreamView s = rank.stream();
  s.synchronize();
  check(cudaMemcpyAsync(words.data(), rank.output(), bytes, cudaMemcpyDefault, s.get()), "copy");
  s.synchronize();
  return words;
}

class CollectiveOfRanks : public CollectiveTest, public testing::WithParamInterface<int> {};

TEST_P(CollectiveOfRanks, GivesTheHostsBitsInPackets) {
  in_ranks(GetParam(), [](CollectiveRank& rank) {
    check_everything(rank, Algorithm::Packets, Algorithm::Packets);
  });
}

TEST_P(CollectiveOfRanks, GivesTheHostsBitsThroughQueues) {
  in_ranks(GetParam(),
           [](CollectiveRank& rank) { check_everything(rank, Algorithm::Push, Algorithm::Push); });
}

TEST_P(CollectiveOfRanks, GivesTheHostsBitsInLines) {
  in_ranks(GetParam(), [](CollectiveRank& rank) {
    check_everything(rank, Algorithm::Lines, Algorithm::Lines);
  });
}

TEST_P(CollectiveOfRanks, GivesTheHostsBitsInTwoSteps) {
  in_ranks(GetParam(), [](CollectiveRank& rank) {
    check_everything(rank, Algorithm::Auto, Algorithm::LinesTwoShot);
    check_everything(rank, Algorithm::Auto, Algorithm::PacketsTwoShot);
    check_everything(rank, Algorithm::Auto, Algorithm::PushTwoShot);
  });
}

TEST_P(CollectiveOfRanks, MovesTensorsMuchLargerThanItsQueues) {
  in_ranks(GetParam(), [](CollectiveRank& rank) {
    for (int kind = 0; kind < kCollectiveCount; ++kind) {
      CollectiveCase test;
      test.kind = static_cast<Collective>(kind);
      test.count = 2'000'003;
      test.shift = static_cast<std::size_t>(kind % 2);
      test.in_place = kind % 3 == 0;
      rank.check(test, 17);
    }
  });
}

TEST_P(CollectiveOfRanks, MovesInLinesWhatTakesManyRounds) {
  in_ranks(GetParam(), [](CollectiveRank& rank) {
    for (int kind = 0; kind < kCollectiveCount; ++kind) {
      CollectiveCase test;
      test.kind = static_cast<Collective>(kind);
      test.algorithm = Algorithm::Lines;
      test.count = 1'000'003;
      test.shift = static_cast<std::size_t>(kind % 2);
      test.in_place = kind % 3 == 0;
      rank.check(test, 19);
    }
  });
}

TEST_P(CollectiveOfRanks, KeepsStepWhenSizesAndFormsAlternate) {
  in_ranks(GetParam(), [](CollectiveRank& rank) {
    const Algorithm forms[] = {Algorithm::Packets,        Algorithm::Push,
                               Algorithm::Lines,          Algorithm::PushTwoShot,
                               Algorithm::PacketsTwoShot, Algorithm::LinesTwoShot};
    for (std::uint64_t i = 0; i < 300; ++i) {
      CollectiveCase test;
      test.algorithm = forms[i % 6];
      test.count = 1 + mix_bits(i) % 100'000;
      if (i % 7 == 0) {
        test.kind = Collective::Broadcast;
        test.root = static_cast<int>(i) % rank.size();
        test.algorithm = i % 2 == 0 ? Algorithm::Packets : Algorithm::Push;
      }
      rank.check(test, i);
    }
  });
}

TEST_P(CollectiveOfRanks, ReplaysAGraphAThousandTimes) {
  in_ranks(GetParam(), [](CollectiveRank& rank) {
    const auto submit_all = [&] {
      std::size_t at = 0;
      for (const Algorithm form :
           {Algorithm::Packets, Algorithm::Push, Algorithm::Lines, Algorithm::PacketsTwoShot,
            Algorithm::LinesTwoShot, Algorithm::PushTwoShot}) {
        for (const std::size_t count : {1ul, 5000ul}) {
          CollectiveCase test;
          test.algorithm = form;
          test.count = count;
          rank.submit(test, rank.input() + at, rank.output() + at);
          at += 32'768;
        }
      }
      rank.communicator().barrier(rank.stream());
    };
    const Graph graph(rank.stream(), submit_all);
    const HostTensor values = make_values(DType::Float32, 100'000, rank.rank(), 3);
    check(cudaMemcpyAsync(rank.input(), values.data(), values.size(), cudaMemcpyDefault,
                          rank.stream().get()),
          "copy");
    for (int i = 0; i < 1000; ++i) {
      graph.launch(rank.stream());
      // Ranks that share a GPU share what launches wait in: not more of them than it takes.
      if (i % 10 == 9) rank.stream().synchronize();
    }
    HostTensor result(values.size());
    check(cudaMemcpyAsync(result.data(), rank.output(), result.size(), cudaMemcpyDefault,
                          rank.stream().get()),
          "copy");
    rank.stream().synchronize();
    const Status status = rank.communicator().status();
    if (!status.is_ok()) throw std::runtime_error(status.to_string());
    std::vector<HostTensor> all;
    for (int r = 0; r < rank.size(); ++r) all.push_back(make_values(DType::Float32, 100'000, r, 3));
    const HostTensor wanted = reduce_on_host(all, DType::Float32, ReduceOp::Sum, 1.0, 1.0);
    for (std::size_t run = 0; run < 12; ++run) {
      const std::size_t bytes = run % 2 == 0 ? 4 : 20'000;
      if (std::memcmp(&result[run * 32'768], &wanted[run * 32'768], bytes) != 0) {
        throw std::runtime_error("the replay's result is wrong in run " + std::to_string(run));
      }
    }
    rank.check({}, 5);  // and eager calls go on after it
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, CollectiveOfRanks, testing::Values(1, 2, 3, 4),
                         testing::PrintToStringParamName());

TEST_F(CollectiveTest, CopyEnginesGiveTheHostsBits) {
  in_ranks(2, [](CollectiveRank& rank) {
    std::uint64_t seed = 0;
    for (int kind = 0; kind < kCollectiveCount; ++kind) {
      for (int dtype = 0; dtype < kDTypeCount; ++dtype) {
        for (const std::size_t count : {1ul, 1'500'002ul, 1'500'003ul}) {
          CollectiveCase test;
          test.kind = static_cast<Collective>(kind);
          test.algorithm = Algorithm::CopyEngines;
          test.dtype = static_cast<DType>(dtype);
          test.count = count;
          test.op = static_cast<ReduceOp>(dtype == 5 ? 0 : dtype % kReduceOpCount);
          test.in_place = (dtype + kind) % 2 == 0 && test.kind != Collective::Shift;
          test.shift = count % 2 == 0 ? 1 : static_cast<std::size_t>(dtype % 3);
          test.root = dtype % 2;
          rank.check(test, ++seed);
        }
      }
    }
  });
}

TEST_F(CollectiveTest, CopyEnginesCarryManyPieces) {
  in_ranks(2, [](CollectiveRank& rank) {
    CollectiveCase test;
    test.algorithm = Algorithm::CopyEngines;
    test.count = 10'000'000;  // 39 pieces
    for (std::uint64_t seed = 0; seed < 4; ++seed) {
      test.in_place = seed % 2 == 1;
      rank.check(test, seed);
    }
    test.in_place = rank.rank() == 0;  // the other rank is not
    rank.check(test, 4);
    test.in_place = rank.rank() == 1;
    rank.check(test, 5);
    test.kind = Collective::Broadcast;
    test.in_place = false;
    rank.check(test, 6);
  });
}

TEST_F(CollectiveTest, CopyEnginesCarryTheWordThatStandsForNothing) {
  in_ranks(2, [](CollectiveRank& rank) {
    Words words(1'000'000);
    for (std::size_t i = 0; i < words.size(); ++i) words[i] = i % 3 == 0 ? kBlank : 7;
    for (int i = 0; i < 3; ++i) {
      put_words(rank, words);
      rank.communicator().all_reduce(rank.input(), rank.output(), words.size(), DType::Int32,
                                     ReduceOp::Max, rank.stream(), {}, Algorithm::CopyEngines);
      EXPECT_EQ(get_words(rank, Words(words.size()), words.size() * 4), words);
    }
  });
}

/// Tensors of words of which most, or all, stand for nothing, and of an odd number of bytes: what
/// tells that they have arrived is behind the copies, in eager calls and in graphs.
TEST_F(CollectiveTest, CopyEnginesTellOfPiecesInGraphsAndBesideThem) {
  in_ranks(2, [](CollectiveRank& rank) {
    const StreamView s = rank.stream();
    for (const std::uint32_t other : {7u, kBlank}) {
      Words words(700'000, kBlank);
      for (std::size_t i = 0; i < words.size(); i += 100'000) words[i] = other;
      const std::size_t bytes = words.size() * 4 - 1;
      put_words(rank, words);
      const auto submit = [&] {
        rank.communicator().all_reduce(rank.input(), rank.output(), bytes, DType::UInt8,
                                       ReduceOp::Max, s, {}, Algorithm::CopyEngines);
      };
      const Graph graph(s, [&] {
        for (int i = 0; i < 5; ++i) submit();
      });
      s.synchronize();
      rank.communicator().barrier(s);
      for (int i = 0; i < 20; ++i) {
        submit();
        if (i % 3 != 0) graph.launch(s);
      }
      EXPECT_EQ(get_words(rank, words, bytes), words);
    }
  });
}

/// What comes after an operation in its stream may write into its input at once.
TEST_F(CollectiveTest, CopyEnginesHaveReadTheInputWhenAnOperationEnds) {
  in_ranks(2, [](CollectiveRank& rank) {
    constexpr int kRounds = 8;
    constexpr std::size_t kBytes = CollectiveRank::kCapacity / kRounds / 2;
    const StreamView s = rank.stream();
    const auto submit = [&] {
      for (int i = 0; i < kRounds; ++i) {
        check(cudaMemsetAsync(rank.input(), i + rank.communicator().rank(), kBytes, s.get()),
              "cudaMemsetAsync");
        rank.communicator().all_reduce(rank.input(), rank.output() + i * kBytes, kBytes,
                                       DType::UInt8, ReduceOp::Sum, s, {}, Algorithm::CopyEngines);
      }
      check(cudaMemsetAsync(rank.input(), 99, kBytes, s.get()), "cudaMemsetAsync");
    };
    const Graph graph(s, submit);
    for (int round = 0; round < 10; ++round) {
      if (round % 2 == 0) {
        submit();
      } else {
        graph.launch(s);
      }
      s.synchronize();
      std::vector<std::uint8_t> result(kRounds * kBytes), expected;
      for (int i = 0; i < kRounds; ++i) {
        expected.insert(expected.end(), kBytes, static_cast<std::uint8_t>(2 * i + 1));
      }
      check(
          cudaMemcpyAsync(result.data(), rank.output(), result.size(), cudaMemcpyDefault, s.get()),
          "copy");
      s.synchronize();
      EXPECT_TRUE(result == expected);
    }
  });
}

TEST_F(CollectiveTest, CopyEnginesReplayInAGraph) {
  for (const bool early : {false, true}) {
    PeerSettings settings = test_settings();
    settings.early_launch = early;
    in_ranks(
        2,
        [](CollectiveRank& rank) {
          CollectiveCase test;
          test.algorithm = Algorithm::CopyEngines;
          test.count = 3'000'000;
          const Graph graph(rank.stream(), [&] {
            CollectiveCase small;
            for (int i = 0; i < 3; ++i) {
              rank.submit(test, rank.input(), rank.output());
              rank.submit(small, rank.output(), rank.output() + CollectiveRank::kCapacity / 2);
            }
          });
          for (int i = 0; i < 20; ++i) graph.launch(rank.stream());
          rank.stream().synchronize();
          rank.check(test, 9);
        },
        settings);
  }
}

TEST_F(CollectiveTest, TwoCommunicatorsRunAtOnce) {
  run_threads(2, [&](const RankRole& role) {
    CollectiveRank first(role, devices_, test_settings());
    CollectiveRank second(role, devices_, test_settings());
    CollectiveCase test;
    test.count = 3000;
    for (int i = 0; i < 300; ++i) {  // the ranks submit to the two in different order
      CollectiveRank& a = role.rank == 0 ? first : second;
      CollectiveRank& b = role.rank == 0 ? second : first;
      test.algorithm = i % 2 == 0 ? Algorithm::Packets : Algorithm::Push;
      a.submit(test, a.input(), a.output());
      b.submit(test, b.input(), b.output());
    }
    first.stream().synchronize();
    second.stream().synchronize();
    first.check(test, 1);
    second.check(test, 2);
    second.communicator().close();
    first.communicator().close();
  });
}

TEST_F(CollectiveTest, SpreadsNaNAndInfinityAsASumDoes) {
  in_ranks(2, [](CollectiveRank& rank) {
    for (const Algorithm form :
         {Algorithm::Packets, Algorithm::Lines, Algorithm::Push, Algorithm::CopyEngines}) {
      for (const ReduceOp op : {ReduceOp::Sum, ReduceOp::Min, ReduceOp::Max}) {
        const float nan = std::numeric_limits<float>::quiet_NaN();
        const float infinity = std::numeric_limits<float>::infinity();
        const float own[4] = {rank.rank() == 0 ? nan : 1.0f, rank.rank() == 1 ? nan : 1.0f,
                              infinity, rank.rank() == 0 ? 1e-42f : 0.0f};
        float result[4];
        const StreamView s = rank.stream();
        check(cudaMemcpyAsync(rank.input(), own, 16, cudaMemcpyDefault, s.get()), "copy");
        rank.communicator().all_reduce(rank.input(), rank.output(), 4, DType::Float32, op, s, {},
                                       form);
        s.synchronize();
        check(cudaMemcpyAsync(result, rank.output(), 16, cudaMemcpyDefault, s.get()), "copy");
        s.synchronize();
        EXPECT_TRUE(std::isnan(result[0]) && std::isnan(result[1]));
        EXPECT_EQ(result[2], infinity);
        EXPECT_EQ(result[3], op == ReduceOp::Min ? 0.0f : 1e-42f);
      }
    }
  });
}

TEST_F(CollectiveTest, ASilentRankEndsTheOthersWithTimeout) {
  PeerSettings settings = test_settings();
  settings.timeout = milliseconds(200);
  in_ranks(
      2,
      [](CollectiveRank& rank) {
        if (rank.rank() == 1) return rank.communicator().abort();  // never comes
        for (const Algorithm form : {Algorithm::Packets, Algorithm::Lines, Algorithm::Push}) {
          CollectiveCase test;
          test.count = 50'000;
          test.algorithm = form;
          for (int i = 0; i < 20; ++i) rank.submit(test, rank.input(), rank.output());
        }
        rank.stream().synchronize();
        const Status status = rank.communicator().status();
        EXPECT_EQ(status.code(), Code::Timeout);
        EXPECT_EQ(status.rank(), 1);
        check(cudaMemsetAsync(rank.input(), 1, 100, rank.stream().get()), "set");
        rank.stream().synchronize();  // the context still works
      },
      settings);
}

/// A rank that has failed overwrites with its next copies what a late one has not taken yet. So the
/// late one must not take it for good.
TEST_F(CollectiveTest, ALateRankLearnsThatTheOtherOneHasFailed) {
  PeerSettings settings = test_settings();
  settings.timeout = milliseconds(200);
  in_ranks(
      2,
      [](CollectiveRank& rank) {
        PeerCommunicator& c = rank.communicator();
        const StreamView s = rank.stream();
        const auto broadcast = [&](int value) {
          check(cudaMemsetAsync(rank.input(), value, 1 << 20, s.get()), "set");
          c.broadcast(rank.input(), rank.output(), 1 << 20, DType::UInt8, 0, s,
                      Algorithm::CopyEngines);
          s.synchronize();
        };
        if (rank.rank() == 1) std::this_thread::sleep_for(milliseconds(1'000));
        broadcast(1);
        const Status status = c.status();
        EXPECT_EQ(status.code(), Code::Timeout);
        EXPECT_EQ(status.rank(), 1 - rank.rank());
        const bool given_up = status.to_string().find("given up") != std::string::npos;
        EXPECT_EQ(given_up, rank.rank() == 1) << status.to_string();
        broadcast(2);
      },
      settings);
}

TEST_F(CollectiveTest, AbortEndsWhatRuns) {
  for (const Algorithm form :
       {Algorithm::Packets, Algorithm::Lines, Algorithm::Push, Algorithm::CopyEngines}) {
    in_ranks(2, [&](CollectiveRank& rank) {
      if (rank.rank() == 0) {
        CollectiveCase test;
        test.count = 1'00'000;
        test.algorithm = form;
        rank.submit(test, rank.input(), rank.output());
        EXPECT_FALSE(rank.stream().is_done());
      }
      rank.communicator().abort();
      rank.stream().synchronize();
      if (rank.rank() == 0) {
        EXPECT_EQ(rank.communicator().status().code(), Code::Aborted);
      }
    });
  }
}

TEST_F(CollectiveTest, RefusesArgumentsThatCannotBeRight) {
  in_ranks(1, [](CollectiveRank& rank) {
    PeerCommunicator& c = rank.communicator();
    const StreamView s = rank.stream();
    std::byte* data = rank.input();
    EXPECT_THROW(c.all_reduce(data, data, 1, DType::Bool, ReduceOp::Average, s), Error);
    EXPECT_THROW(c.all_reduce(data, data, 1, DType::Int32, ReduceOp::Sum, s, {2.0, 1.0}), Error);
    EXPECT_THROW(c.all_reduce(data + 1, data, 1, DType::Float32, ReduceOp::Sum, s), Error);
    EXPECT_THROW(c.broadcast(data, data, 1, DType::Float32, 1, s), Error);
    EXPECT_THROW(c.send(data, 1, DType::Float32, 1, s), Error);
    EXPECT_THROW(
        c.all_reduce(data, data, 1 << 20, DType::Float32, ReduceOp::Sum, s, {}, Algorithm::Packets),
        Error);
    c.all_reduce(data, data, 0, DType::Float32, ReduceOp::Sum, s);
  });
}

}  // namespace
}  // namespace tersum::gpu
