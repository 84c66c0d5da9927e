// Compressed all-reduces on peer memory; ranks are threads of one process, which share GPUs if need
// be.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <functional>
#include <stdexcept>
#include <string>

#include "cuda/compressed_support.hpp"
#include "cuda/device.hpp"
#include "cuda/error.hpp"

namespace tersum::gpu::test {
namespace {

using std::chrono::milliseconds;

PeerSettings test_settings() {
  PeerSettings settings;
  settings.timeout = milliseconds(4'000);
  settings.push_blocks = 16;  // ranks that share a GPU must fit on it together
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
    for (const char* spec :
         {"fp16", "bf16", "fp16+ef", "qint:bits=8", "qint:bits=4", "qint:bits=2", "qint:bits=3",
          "qint:bits=5", "qint:bits=6", "qint:bits=7", "qint:bits=4,block=128",
          "qint:bits=8,block=32", "qint:bits=4,block=64", "qint:bits=4,block=1024",
          "qint:bits=4,block=256", "qint:bits=4+ef", "qint:bits=8,rounding=stochastic",
          "qint:bits=2,rounding=stochastic", "qint:bits=3,rounding=stochastic+ef", "sign", "sign+ef",
          "sign:block=32", "sign:block=1024+ef", "sign:block=64", "sign:block=128", "sign:block=256"}) {
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
    for (const char* spec : {"fp16", "qint:bits=8+ef", "qint:bits=4,rounding=stochastic", "sign+ef"}) {
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
      for (const char* input : {"nonfinite", "denormals", "huge", "zeros", "ties", "constant", "nan"}) {
        CompressedCase test{spec, 5'000, input};
        test.steps = 2;
        rank.check(test);
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Group, CompressedOfRanks, testing::Values(1, 2, 3, 4));

}  // namespace
}  // namespace tersum::gpu::test
