// Collectives on device memory, as a program with one thread for each GPU calls them.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <numeric>
#include <thread>
#include <vector>

#include "src/device_checks.hpp"

namespace tersum::test {
namespace {

class Device : public testing::Test {
 protected:
  void SetUp() override {
    if (gpu::devices().empty()) GTEST_SKIP() << "no GPU here";
    ranks_ = std::min<int>(4, static_cast<int>(gpu::devices().size()));
    world_ = make_world(ranks_);
  }

  template <class Function>
  void on_each_gpu(const Function& function) {
    test::on_each_gpu(world_, function);
  }

  int ranks_ = 0;
  World world_;
};

TEST_F(Device, AllReduceGoesIntoTheCallersStream) {
  on_each_gpu([&](int rank, Communicator& communicator, gpu::StreamView stream) {
    for (const std::size_t count : {1u, 1000u, 300'001u, 5'000'003u}) {
      Tensor tensor(values_of(rank, count), stream);
      const Work work = communicator.all_reduce(tensor.data(), tensor.data(), count, DType::Float32,
                                                ReduceOp::Sum, {.stream = stream});
      EXPECT_EQ(tensor.read(stream), sum_of(ranks_, count));  // in the order of the stream
      EXPECT_TRUE(succeeds(work));
      EXPECT_EQ(work.stage(), Stage::Done);
    }
  });
}

TEST_F(Device, StreamOrderedCallsAreKnownByTheirStreamAlone) {
  on_each_gpu([&](int rank, Communicator& communicator, gpu::StreamView stream) {
    constexpr std::size_t kCount = 5000;
    Tensor tensor(values_of(rank, kCount), stream);
    auto expected = sum_of(ranks_, kCount);
    const auto call = [&](ReduceOp op, double scale, bool stream_ordered) {
      const CallOptions options{
          .post_scale = scale, .stream = stream, .stream_ordered = stream_ordered};
      const Work work = communicator.all_reduce(tensor.data(), tensor.data(), kCount,
                                                DType::Float32, op, options);
      if (stream_ordered) {
        EXPECT_TRUE(work.done());
      }
    };
    call(ReduceOp::Sum, 1, true);
    for (int i = 0; i < 41; ++i)  // one that is lost would show; some are of the other kind
      call(ReduceOp::Average, i % 2 == 0 ? 2 : 0.5, i % 10 != 9);
    std::thread([&] { call(ReduceOp::Average, 2, true); }).join();  // one that is new to CUDA
    for (float& value : expected) value *= 4;
    EXPECT_EQ(tensor.read(stream), expected);
    EXPECT_TRUE(communicator.status().is_ok());
    std::vector<float> host(kCount);
    const CallOptions options{.stream = stream, .stream_ordered = true};
    EXPECT_EQ(thrown_by([&] {
                communicator.all_reduce(tensor.data(), host.data(), kCount, DType::Float32,
                                        ReduceOp::Sum, options);
              }).code(),
              Code::InvalidArgument);
  });
}

TEST_F(Device, AStreamOrderedCallThatFailsShowsInTheCommunicator) {
  if (ranks_ < 2) GTEST_SKIP() << "one GPU only";
  World world = make_world(ranks_, quiet(std::chrono::milliseconds(500)));
  each_rank(ranks_, [&](int rank) {
    gpu::check(cudaSetDevice(rank), "cudaSetDevice");
    const gpu::Stream stream;
    Communicator& communicator = world[static_cast<std::size_t>(rank)];
    const CallOptions options{.stream = stream.view(), .stream_ordered = true};
    const gpu::DeviceBuffer values(4000);
    const auto call = [&] {
      communicator.all_reduce(values.data(), values.data(), 1000, DType::Float32, ReduceOp::Max,
                              options);
    };
    call();
    stream.synchronize();
    if (rank != 0) return;  // they do not come again
    call();
    stream.synchronize();
    EXPECT_EQ(communicator.status().code(), Code::Timeout);
    EXPECT_EQ(thrown_by(call).code(), Code::Timeout);
  });
}

TEST_F(Device, WhatGoesToOtherRanksIsCounted) {
  on_each_gpu([&](int rank, Communicator& communicator, gpu::StreamView stream) {
    const auto n = static_cast<std::size_t>(ranks_);
    Tensor tensor(values_of(rank, 1000 * n), stream), parts(values_of(rank, 1000 * n), stream);
    const CallOptions options{.stream = stream};
    const auto sent_in = [&](const auto& call) {
      EXPECT_TRUE(succeeds(communicator.barrier(options)));  // opens the way, which counts as well
      const std::uint64_t before = communicator.sent_bytes();
      EXPECT_TRUE(succeeds(call()));
      return communicator.sent_bytes() - before;
    };
    EXPECT_EQ(sent_in([&] {
                return communicator.all_reduce(tensor.data(), tensor.data(), 1000 * n,
                                               DType::Float32, ReduceOp::Sum, options);
              }),
              8000 * (n - 1));
    EXPECT_EQ(sent_in([&] {
                return communicator.broadcast(tensor.data(), 500, DType::Float32, 0, options);
              }),
              rank == 0 ? 2000 * (n - 1) : 0);
    std::vector<std::size_t> counts(n, 100);
    counts[static_cast<std::size_t>(rank)] = 7;  // stays here
    EXPECT_EQ(sent_in([&] {
                return communicator.all_to_all_v(tensor.data(), counts, parts.data(), counts,
                                                 DType::Float32, options);
              }),
              (400 + sizeof(std::uint64_t)) * (n - 1));  // the counts are compared
  });
}

TEST_F(Device, CallbacksComeWithoutAnybodyWaiting) {
  on_each_gpu([&](int rank, Communicator& communicator, gpu::StreamView stream) {
    check_callback(rank, communicator, stream);
  });
}

TEST_F(Device, GraphsReplayWhatWasCaptured) {
  constexpr std::size_t kCount = 5000;
  on_each_gpu([&](int rank, Communicator& communicator, gpu::StreamView stream) {
    Tensor input(values_of(rank, kCount), stream), output(std::vector<float>(kCount), stream);
    const CallOptions options{.stream = stream};
    communicator.barrier().wait();
    communicator  // opens the way over peer memory, which cannot be captured
        .all_reduce(input.data(), output.data(), kCount, DType::Float32, ReduceOp::Sum, options)
        .wait();
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    const std::uint64_t before = communicator.sent_bytes();
    gpu::check(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal), "capture");
    EXPECT_TRUE(
        communicator
            .all_reduce(input.data(), output.data(), kCount, DType::Float32, ReduceOp::Sum, options)
            .done());
    gpu::check(cudaStreamEndCapture(stream.get(), &graph), "capture");
    gpu::check(cudaGraphInstantiate(&executable, graph, 0), "cudaGraphInstantiate");
    for (int replay = 0; replay < 100; ++replay) {
      gpu::check(cudaMemsetAsync(output.data(), 0xff, kCount * sizeof(float), stream.get()),
                 "cudaMemsetAsync");
      gpu::check(cudaGraphLaunch(executable, stream.get()), "cudaGraphLaunch");
    }
    EXPECT_EQ(output.read(stream), sum_of(ranks_, kCount));
    const auto n = static_cast<std::uint64_t>(ranks_);  // the capture counts, replays do not
    EXPECT_EQ(communicator.sent_bytes() - before, 2 * (n - 1) * kCount / n * sizeof(float));
    cudaGraphExecDestroy(executable);
    cudaGraphDestroy(graph);
  });
}

TEST_F(Device, OtherCollectivesWorkTheSameWay) {
  constexpr std::size_t kCount = 1003;
  on_each_gpu([&](int rank, Communicator& communicator, gpu::StreamView stream) {
    const auto n = static_cast<std::size_t>(ranks_), me = static_cast<std::size_t>(rank);
    const CallOptions options{.stream = stream};
    Tensor one(values_of(rank, kCount), stream), all(std::vector<float>(n * kCount), stream);
    communicator.all_gather(one.data(), all.data(), kCount, DType::Float32, options);
    const auto gathered = all.read(stream);
    for (int r = 0; r < ranks_; ++r) {
      const auto part = gathered.begin() + r * static_cast<std::ptrdiff_t>(kCount);
      EXPECT_EQ(std::vector<float>(part, part + kCount), values_of(r, kCount));
    }

    communicator.reduce_scatter(all.data(), one.data(), kCount, DType::Float32, ReduceOp::Sum,
                                options);
    auto scaled = values_of(rank, kCount);
    for (float& value : scaled) value *= static_cast<float>(ranks_);
    EXPECT_EQ(one.read(stream), scaled);

    Tensor sent(values_of(rank, kCount), stream);
    communicator.broadcast(sent.data(), kCount, DType::Float32, ranks_ - 1, options);
    EXPECT_EQ(sent.read(stream), values_of(ranks_ - 1, kCount));

    Tensor mine(values_of(rank, kCount), stream), sum(std::vector<float>(kCount), stream);
    communicator.reduce(mine.data(), rank == 0 ? sum.data() : nullptr, kCount, DType::Float32,
                        ReduceOp::Sum, 0, options);
    if (rank == 0) {
      EXPECT_EQ(sum.read(stream), sum_of(ranks_, kCount));
    }

    Tensor parts(values_of(rank, n * kCount), stream),
        mixed(std::vector<float>(n * kCount), stream);
    communicator.all_to_all(parts.data(), mixed.data(), kCount, DType::Float32, options);
    const auto exchanged = mixed.read(stream);
    for (std::size_t r = 0; r < n; ++r) {
      const auto theirs = values_of(static_cast<int>(r), n * kCount);
      for (std::size_t i = 0; i < kCount; ++i)
        ASSERT_EQ(exchanged[r * kCount + i], theirs[me * kCount + i]);
    }
  });
}

TEST_F(Device, RanksHaveCountsOfTheirOwn) {
  on_each_gpu([&](int, Communicator& communicator, gpu::StreamView stream) {
    check_uneven_gather(communicator, stream);
    check_uneven_exchange(communicator, stream);
    check_idle_exchange(communicator, stream);
  });
}

TEST_F(Device, ABarrierHoldsAllStreamsUntilTheLastHasCome) {
  on_each_gpu([&](int rank, Communicator&, gpu::StreamView stream) {
    check_barrier(world_, rank, stream);
  });
}

TEST_F(Device, RanksThatDisagreeAboutCountsGetMismatch) {
  if (ranks_ < 2) GTEST_SKIP() << "one GPU only";
  on_each_gpu([&](int rank, Communicator& communicator, gpu::StreamView stream) {
    check_exchange_of_other_counts(communicator, stream);
    EXPECT_EQ(communicator.status().code(), Code::Mismatch);
    Tensor other(values_of(rank, 10), stream);  // the GPU goes on working
    EXPECT_EQ(other.read(stream), values_of(rank, 10));
  });
}

TEST_F(Device, GroupsThatComeAndGoLeaveNoMemoryTaken) {
  on_each_gpu([&](int, Communicator& communicator, gpu::StreamView stream) {
    check_that_groups_leave_nothing(communicator, stream, true);
  });
}

TEST_F(Device, AbortEndsWhatWaitsForAPeer) {
  if (ranks_ < 2) GTEST_SKIP() << "one GPU only";
  on_each_gpu([&](int rank, Communicator& communicator, gpu::StreamView stream) {
    const CallOptions options{.stream = stream};
    Tensor tensor(values_of(rank, 1000), stream);
    communicator
        .all_reduce(tensor.data(), tensor.data(), 1000, DType::Float32, ReduceOp::Sum, options)
        .wait();
    if (rank == 0) {
      const Work work = communicator.all_reduce(tensor.data(), tensor.data(), 1000, DType::Float32,
                                                ReduceOp::Sum, options);
      EXPECT_FALSE(work.wait(std::chrono::milliseconds(100)));
      communicator.abort("enough");
      EXPECT_EQ(outcome(work).code(), Code::Aborted);
      EXPECT_THROW(communicator.all_reduce(tensor.data(), tensor.data(), 1000, DType::Float32,
                                           ReduceOp::Sum, options),
                   Error);
    }
    Tensor other(values_of(rank, 10), stream);  // the GPU goes on working
    EXPECT_EQ(other.read(stream), values_of(rank, 10));
  });
}

TEST_F(Device, RanksThatDisagreeGetMismatch) {
  if (ranks_ < 2) GTEST_SKIP() << "one GPU only";
  on_each_gpu([&](int rank, Communicator& communicator, gpu::StreamView stream) {
    const CallOptions options{.stream = stream};
    Tensor tensor(values_of(rank, 1000), stream);
    communicator
        .all_reduce(tensor.data(), tensor.data(), 1000, DType::Float32, ReduceOp::Sum, options)
        .wait();
    const Work work =  // the same bytes: kernels notice nothing
        communicator.all_reduce(tensor.data(), tensor.data(), 900, DType::Float32,
                                rank == 0 ? ReduceOp::Max : ReduceOp::Min, options);
    const Status status = outcome(work);
    EXPECT_EQ(status.code(), Code::Mismatch);
    EXPECT_NE(status.message().find("900 fp32, max, in device memory"), std::string::npos)
        << status.message();
    EXPECT_EQ(communicator.status().code(), Code::Mismatch);
    stream.synchronize();
    Tensor other(values_of(rank, 10), stream);  // the GPU goes on working
    EXPECT_EQ(other.read(stream), values_of(rank, 10));
  });
}

TEST_F(Device, TensorsInDifferentMemoriesAreRefused) {
  on_each_gpu([&](int rank, Communicator& communicator, gpu::StreamView stream) {
    Tensor tensor(values_of(rank, 10), stream);
    std::array<float, 10> host{};
    EXPECT_THROW(communicator.all_reduce(host.data(), tensor.data(), 10, DType::Float32), Error);
    EXPECT_THROW(communicator.all_reduce(tensor.data(), tensor.data(), 10, DType::Float32,
                                         ReduceOp::Sum, {.timeout = std::chrono::milliseconds(-1)}),
                 Error);
    EXPECT_THROW(communicator.all_reduce(host.data(), host.data(), 10, DType::Float32,
                                         ReduceOp::Sum, {.stream = stream}),
                 Error);
  });
}

}  // namespace
}  // namespace tersum::test
