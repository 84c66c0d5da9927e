// Collectives on device memory between hosts. Ranks are threads that believe to be on different
// hosts; some of them share a GPU where there are fewer GPUs than ranks.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <numeric>
#include <string>
#include <vector>

#include "src/device_checks.hpp"
#include "src/numbers.hpp"

namespace tersum::test {
namespace {

/// Lengths that need one slice, a few, and more than there are slots.
constexpr std::size_t kCounts[] = {1, 1000, 300'001, 5'000'003, 13'000'001};

World make_hosts(const std::string& hosts, Config config = quiet()) {
  // A rank that waits for ever fails its test before ctest ends the program.
  config.timeout = std::min(config.timeout, std::chrono::milliseconds(60'000));
  std::vector<Config> configs;
  for (const char host : hosts) {
    config.host_id = std::string(1, host);
    configs.push_back(config);
  }
  return make_local_world(configs);
}

/// The parameter says which host each rank is on: "aab" are two ranks on one and a third on
/// another.
class BetweenHosts : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const int gpus = static_cast<int>(gpu::devices().size());
    if (gpus == 0) GTEST_SKIP() << "no GPU here";
    const std::string hosts = GetParam();
    if (hosts == "aabb" && gpus < 2) GTEST_SKIP() << "one GPU only: a host needs two";
    world_ = make_hosts(hosts);
    ranks_ = static_cast<int>(world_.size());
  }

  int ranks_ = 0;
  World world_;
};

INSTANTIATE_TEST_SUITE_P(Hosts, BetweenHosts, testing::Values("ab", "abc", "aab", "aabb"));

TEST_P(BetweenHosts, AllReduceComesInTheOrderOfTheStream) {
  on_each_gpu(world_, [&](int rank, Communicator& communicator, gpu::StreamView stream) {
    for (const std::size_t count : kCounts) {
      Tensor input(values_of(rank, count), stream), output(std::vector<float>(count), stream);
      const CallOptions options{.stream = stream};
      const Work work = communicator.all_reduce(input.data(), output.data(), count, DType::Float32,
                                                ReduceOp::Sum, options);
      EXPECT_EQ(output.read(stream), sum_of(ranks_, count)) << count;
      EXPECT_EQ(input.read(stream), values_of(rank, count)) << count;
      EXPECT_TRUE(succeeds(work));
    }
  });
}

TEST_P(BetweenHosts, ManyCallsInPlaceFollowEachOtherWithoutTheHostWaiting) {
  constexpr std::size_t kCount = 1'000'003;
  constexpr int kCalls = 12;
  on_each_gpu(world_, [&](int rank, Communicator& communicator, gpu::StreamView stream) {
    Tensor tensor(values_of(rank, kCount), stream);
    Work last;
    for (int call = 0; call < kCalls; ++call) {
      CallOptions options{.stream = stream};
      if (call > 0) options.post_scale = 1.0 / ranks_;
      last = communicator.all_reduce(tensor.data(), tensor.data(), kCount, DType::Float32,
                                     ReduceOp::Sum, options);
    }
    auto expected = sum_of(ranks_, kCount);
    const auto result = tensor.read(stream);
    for (std::size_t i = 0; i < kCount; ++i)
      ASSERT_NEAR(result[i], expected[i], 1e-3f * expected[i]) << i;
    EXPECT_TRUE(succeeds(last));
  });
}

TEST_P(BetweenHosts, AveragesAndScalesAreThoseOfAllRanks) {
  on_each_gpu(world_, [&](int rank, Communicator& communicator, gpu::StreamView stream) {
    for (const std::size_t count : {std::size_t{100}, std::size_t{1'000'000}}) {
      Tensor tensor(std::vector<float>(count, static_cast<float>(rank + 1)), stream);
      CallOptions options{.stream = stream};
      options.pre_scale = 4;
      options.post_scale = 0.5;
      communicator.all_reduce(tensor.data(), tensor.data(), count, DType::Float32,
                              ReduceOp::Average, options);
      const float expected = 2.0f * static_cast<float>(ranks_ + 1) / 2;
      for (const float value : tensor.read(stream)) ASSERT_FLOAT_EQ(value, expected);
      communicator.all_reduce(tensor.data(), tensor.data(), count, DType::Int32, ReduceOp::Max,
                              {.stream = stream});
      for (const float value : tensor.read(stream)) ASSERT_FLOAT_EQ(value, expected);
    }
  });
}

/// Whole numbers that 16-bit floats hold; their sums they do not.
std::vector<int> whole_numbers(DType dtype, int rank, std::size_t count) {
  const int most = dtype == DType::Float16 ? 2048 : 256;
  std::vector<int> values(count);
  for (std::size_t i = 0; i < count; ++i)
    values[i] = static_cast<int>((i * 7919 + static_cast<std::size_t>(rank) * 104'729) %
                                 static_cast<std::size_t>(2 * most + 1)) -
                most;
  return values;
}

std::vector<std::byte> bytes_of(const std::vector<float>& values) {
  const auto bytes = std::as_bytes(std::span(values));
  return {bytes.begin(), bytes.end()};
}

/// [count] elements of 16 bits, two in each float of a tensor.
template <class Value>
std::vector<float> encoded(DType dtype, const std::vector<Value>& values) {
  const SmallFloat& format = dtype == DType::Float16 ? kHalf : kBrain;
  std::vector<std::uint16_t> elements((values.size() + 1) / 2 * 2);
  for (std::size_t i = 0; i < values.size(); ++i)
    elements[i] = format.encode(static_cast<double>(values[i]));
  std::vector<float> pairs(elements.size() / 2);
  std::memcpy(pairs.data(), elements.data(), elements.size() * sizeof(std::uint16_t));
  return pairs;
}

TEST_P(BetweenHosts, SumsOfSixteenBitFloatsAreRoundedOnce) {
  on_each_gpu(world_, [&](int rank, Communicator& communicator, gpu::StreamView stream) {
    for (const DType dtype : {DType::Float16, DType::BFloat16}) {
      for (const std::size_t count : {std::size_t{1}, std::size_t{1000}, std::size_t{6'000'003}}) {
        std::vector<float> sums(count);
        for (int r = 0; r < ranks_; ++r) {
          const auto values = whole_numbers(dtype, r, count);
          for (std::size_t i = 0; i < count; ++i) sums[i] += static_cast<float>(values[i]);
        }
        const auto values = encoded(dtype, whole_numbers(dtype, rank, count));
        Tensor input(values, stream), output(std::vector<float>(values.size()), stream);
        const std::uint64_t before = communicator.sent_bytes();
        EXPECT_TRUE(succeeds(communicator.all_reduce(input.data(), output.data(), count, dtype,
                                                     ReduceOp::Sum, {.stream = stream})));
        const std::uint64_t sent = communicator.sent_bytes() - before;
        EXPECT_EQ(bytes_of(output.read(stream)), bytes_of(encoded(dtype, sums))) << count;
        if (std::string(GetParam()) == "aabb" && count > 1000) {
          EXPECT_LT(sent, count * 16 / 10);  // 1.5 bytes an element; 3 without the hosts' sums
        }

        for (float& sum : sums) sum = sum / static_cast<float>(ranks_) * 4.0f;
        CallOptions options{.stream = stream};
        options.pre_scale = 2;
        options.post_scale = 2;
        communicator.all_reduce(input.data(), input.data(), count, dtype, ReduceOp::Average,
                                options);
        EXPECT_EQ(bytes_of(input.read(stream)), bytes_of(encoded(dtype, sums))) << count;
      }
    }
  });
}

TEST_P(BetweenHosts, AllRanksGetTheSameBits) {
  constexpr std::size_t kCount = 2'000'003;
  std::vector<std::vector<float>> results(static_cast<std::size_t>(ranks_));
  on_each_gpu(world_, [&](int rank, Communicator& communicator, gpu::StreamView stream) {
    std::vector<float> values(kCount);
    for (std::size_t i = 0; i < kCount; ++i)
      values[i] = 1.0f / static_cast<float>(i % 977 + 3 + static_cast<std::size_t>(rank));
    Tensor tensor(values, stream);
    communicator.all_reduce(tensor.data(), tensor.data(), kCount, DType::Float32, ReduceOp::Sum,
                            {.stream = stream});
    results[static_cast<std::size_t>(rank)] = tensor.read(stream);
  });
  for (const auto& result : results) EXPECT_EQ(result, results.front());
}

TEST_P(BetweenHosts, OtherReductionsWork) {
  on_each_gpu(world_, [&](int, Communicator& communicator, gpu::StreamView stream) {
    check_reductions(communicator, stream);
  });
}

TEST_P(BetweenHosts, DataMovesAsInHostMemory) {
  on_each_gpu(world_, [&](int, Communicator& communicator, gpu::StreamView stream) {
    check_moves(communicator, stream);
  });
}

TEST_P(BetweenHosts, RanksHaveCountsOfTheirOwn) {
  on_each_gpu(world_, [&](int, Communicator& communicator, gpu::StreamView stream) {
    check_uneven_gather(communicator, stream);
    check_uneven_exchange(communicator, stream);
    check_idle_exchange(communicator, stream);
  });
}

TEST_P(BetweenHosts, ABarrierHoldsAllStreamsUntilTheLastHasCome) {
  on_each_gpu(world_, [&](int rank, Communicator&, gpu::StreamView stream) {
    check_barrier(world_, rank, stream);
  });
}

TEST_P(BetweenHosts, GroupsThatComeAndGoLeaveNoMemoryTaken) {
  on_each_gpu(world_, [&](int, Communicator& communicator, gpu::StreamView stream) {
    check_that_groups_leave_nothing(communicator, stream, false);
  });
}

TEST_P(BetweenHosts, SendsMeetReceivesAlsoWhenAllSendFirst) {
  on_each_gpu(world_, [&](int, Communicator& communicator, gpu::StreamView stream) {
    check_ring(communicator, stream);
  });
}

TEST_P(BetweenHosts, CallbacksComeWithoutAnybodyWaiting) {
  on_each_gpu(world_, [&](int rank, Communicator& communicator, gpu::StreamView stream) {
    check_callback(rank, communicator, stream);
  });
}

/// A pair on two hosts: what fails here ends without a whole group.
class HostPair : public testing::Test {
 protected:
  void SetUp() override {
    if (gpu::devices().empty()) GTEST_SKIP() << "no GPU here";
  }
};

TEST_F(HostPair, RanksThatDisagreeGetMismatchAndGoOn) {
  World world = make_hosts("ab");
  on_each_gpu(world, [&](int rank, Communicator& communicator, gpu::StreamView stream) {
    const CallOptions options{.stream = stream};
    constexpr std::size_t kCount = 3'000'000;
    Tensor tensor(values_of(rank, kCount), stream);
    const std::size_t count = kCount - static_cast<std::size_t>(rank);
    const Work work = communicator.all_reduce(tensor.data(), tensor.data(), count, DType::Float32,
                                              ReduceOp::Sum, options);
    const Status status = outcome(work);
    EXPECT_EQ(status.code(), Code::Mismatch);
    EXPECT_NE(status.message().find("2999999 fp32, sum, in device memory"), std::string::npos)
        << status.message();
    stream.synchronize();  // nothing is left in it that waits
    Tensor again(values_of(rank, 1000), stream);
    communicator.all_reduce(again.data(), again.data(), 1000, DType::Float32, ReduceOp::Sum,
                            options);
    EXPECT_EQ(again.read(stream), sum_of(2, 1000));
  });
}

TEST_F(HostPair, RanksThatDisagreeAboutCountsGetMismatchAndGoOn) {
  World world = make_hosts("ab");
  on_each_gpu(world, [&](int rank, Communicator& communicator, gpu::StreamView stream) {
    check_exchange_of_other_counts(communicator, stream);
    Tensor again(values_of(rank, 1000), stream);
    communicator.all_reduce(again.data(), again.data(), 1000, DType::Float32, ReduceOp::Sum,
                            {.stream = stream});
    EXPECT_EQ(again.read(stream), sum_of(2, 1000));
  });
}

TEST_F(HostPair, ASilentPeerEndsInATimeoutAndTheStreamGoesOn) {
  World world = make_hosts("ab", quiet(std::chrono::milliseconds(300)));
  on_each_gpu(world, [&](int rank, Communicator& communicator, gpu::StreamView stream) {
    Tensor tensor(values_of(rank, 1'000'000), stream);
    communicator  // all ranks open the way together
        .all_reduce(tensor.data(), tensor.data(), 10, DType::Float32, ReduceOp::Sum,
                    {.stream = stream})
        .wait();
    if (rank == 0) {
      const Work work = communicator.all_reduce(tensor.data(), tensor.data(), 1'000'000,
                                                DType::Float32, ReduceOp::Sum, {.stream = stream});
      EXPECT_EQ(outcome(work).code(), Code::Timeout);
      stream.synchronize();
      EXPECT_EQ(communicator.status().code(), Code::Timeout);
    }
    Tensor other(values_of(rank, 10), stream);  // the GPU goes on working
    EXPECT_EQ(other.read(stream), values_of(rank, 10));
  });
}

TEST_F(HostPair, AbortEndsWhatWaitsForAPeer) {
  World world = make_hosts("ab");
  on_each_gpu(world, [&](int rank, Communicator& communicator, gpu::StreamView stream) {
    Tensor tensor(values_of(rank, 1000), stream);
    const CallOptions options{.stream = stream};
    communicator
        .all_reduce(tensor.data(), tensor.data(), 1000, DType::Float32, ReduceOp::Sum, options)
        .wait();
    if (rank == 0) {
      const Work work = communicator.all_reduce(tensor.data(), tensor.data(), 1000, DType::Float32,
                                                ReduceOp::Sum, options);
      EXPECT_FALSE(work.wait(std::chrono::milliseconds(50)));
      communicator.abort("enough");
      EXPECT_EQ(outcome(work).code(), Code::Aborted);
    }
    stream.synchronize();
  });
}

TEST_F(HostPair, GraphsAreRefused) {
  World world = make_hosts("ab");
  on_each_gpu(world, [&](int rank, Communicator& communicator, gpu::StreamView stream) {
    Tensor tensor(values_of(rank, 10), stream);
    const CallOptions options{.stream = stream};
    communicator
        .all_reduce(tensor.data(), tensor.data(), 10, DType::Float32, ReduceOp::Sum, options)
        .wait();
    cudaGraph_t graph = nullptr;
    gpu::check(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal), "capture");
    const Status status = thrown_by([&] {
      communicator.all_reduce(tensor.data(), tensor.data(), 10, DType::Float32, ReduceOp::Sum,
                              options);
    });
    EXPECT_EQ(status.code(), Code::Unsupported);
    gpu::check(cudaStreamEndCapture(stream.get(), &graph), "capture");
    cudaGraphDestroy(graph);
  });
}

TEST_F(HostPair, ManyCommunicatorsComeAndGo) {
  for (int i = 0; i < 5; ++i) {
    World world = make_hosts("ab");
    on_each_gpu(world, [&](int rank, Communicator& communicator, gpu::StreamView stream) {
      Tensor tensor(values_of(rank, 1000), stream);
      communicator.all_reduce(tensor.data(), tensor.data(), 1000, DType::Float32, ReduceOp::Sum,
                              {.stream = stream});
      EXPECT_EQ(tensor.read(stream), sum_of(2, 1000));
    });
  }
}

}  // namespace
}  // namespace tersum::test
