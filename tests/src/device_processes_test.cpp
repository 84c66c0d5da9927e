// Collectives on device memory between processes, and what is left of them when one dies. Ranks are
// this program again, started with the variables of a launcher and one test to run.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "src/device_checks.hpp"
#include "src/device_job.hpp"
#include "transport/ucx_transport.hpp"

namespace tersum::test {
namespace {

using Seconds = std::chrono::duration<double>;

constexpr std::size_t kCount = 3'000'001;

void check_sum(Communicator& communicator, gpu::StreamView stream, std::size_t count) {
  Tensor tensor(values_of(communicator.rank(), count), stream);
  const Work work = communicator.all_reduce(tensor.data(), tensor.data(), count, DType::Float32,
                                            ReduceOp::Sum, {.stream = stream});
  EXPECT_EQ(tensor.read(stream), sum_of(communicator.size(), count));
  EXPECT_TRUE(succeeds(work));
}

/// Rank 1 ends or stops, with calls under way on the other ranks: they get PeerLost, say after what
/// time, and their GPUs go on working.
void survive(Communicator& communicator, gpu::StreamView stream, int signal) {
  Tensor tensor(values_of(communicator.rank(), kCount), stream);
  const auto begin = std::chrono::steady_clock::now();
  if (communicator.rank() == 1) ::raise(signal);
  std::vector<Work> works;
  Status refused;
  for (int i = 0; i < 8 && refused.is_ok(); ++i)
    refused = thrown_by([&] {  // when the news is here already
      works.push_back(communicator.all_reduce(tensor.data(), tensor.data(), kCount, DType::Float32,
                                              ReduceOp::Sum, {.stream = stream}));
    });
  for (const Work& work : works) {
    const Status status = outcome(work);
    EXPECT_EQ(status.code(), Code::PeerLost) << status.to_string();
    EXPECT_EQ(status.rank(), 1);
  }
  EXPECT_EQ(communicator.status().code(), Code::PeerLost);
  const Seconds taken = std::chrono::steady_clock::now() - begin;
  stream.synchronize();
  std::printf("rank %d: PeerLost after %.3f s\n", communicator.rank(), taken.count());
  Tensor other(values_of(7, 1000), stream);
  EXPECT_EQ(other.read(stream), values_of(7, 1000));
}

TEST(DeviceRank, Runs) {
  const std::string what = role();
  if (what.empty()) GTEST_SKIP() << "a rank of the tests below";
  Communicator communicator = Communicator::connect();
  const int gpus = static_cast<int>(gpu::devices().size());
  gpu::check(cudaSetDevice(communicator.rank() % gpus), "cudaSetDevice");
  const gpu::Stream stream;
  for (const std::size_t count : {std::size_t{1}, std::size_t{1000}, kCount})
    check_sum(communicator, stream, count);
  if (what == "everything") {
    check_reductions(communicator, stream);
    check_moves(communicator, stream);
    check_ring(communicator, stream);
    check_uneven_gather(communicator, stream);
    check_uneven_exchange(communicator, stream);
    check_idle_exchange(communicator, stream);
    EXPECT_TRUE(succeeds(communicator.barrier({.stream = stream.view()})));
  }
  if (what == "killed") survive(communicator, stream, SIGKILL);
  if (what == "stopped") survive(communicator, stream, SIGSTOP);
}

class DeviceProcesses : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (!gpu::has_device()) GTEST_SKIP() << "no GPU here";
    if (std::string(GetParam()) == "aabb" && gpu::devices().size() < 2)
      GTEST_SKIP() << "one GPU only: a host needs two";
  }
};

INSTANTIATE_TEST_SUITE_P(Hosts, DeviceProcesses, testing::Values("ab", "abc", "aabb"));

TEST_P(DeviceProcesses, CollectivesWork) {
  Job job(GetParam(), "everything");
  for (std::size_t rank = 0; rank < std::string(GetParam()).size(); ++rank)
    EXPECT_EQ(job.status_of(rank), 0) << rank;
}

TEST_P(DeviceProcesses, CollectivesWorkWithUcxOnDeviceMemory) {
  const auto transports = transport::ucx_transports();
  if (std::none_of(transports.begin(), transports.end(),
                   [](const auto& name) { return name.starts_with("cuda_copy"); }))
    GTEST_SKIP() << "this UCX has no CUDA";
  Job job(GetParam(), "everything", {"TERSUM_DEVICE_STAGING=ucx"});
  for (std::size_t rank = 0; rank < std::string(GetParam()).size(); ++rank)
    EXPECT_EQ(job.status_of(rank), 0) << rank;
}

TEST_P(DeviceProcesses, AKilledRankIsNamedAndTheOthersGoOn) {
  Job job(GetParam(), "killed");
  for (std::size_t rank = 0; rank < std::string(GetParam()).size(); ++rank)
    EXPECT_EQ(job.status_of(rank), rank == 1 ? -SIGKILL : 0) << rank;
}

TEST_P(DeviceProcesses, AStoppedRankIsNamedAndTheOthersGoOn) {
  Job job(GetParam(), "stopped");
  for (std::size_t rank = 0; rank < std::string(GetParam()).size(); ++rank)
    if (rank != 1) {
      EXPECT_EQ(job.status_of(rank), 0) << rank;
    }
}

}  // namespace
}  // namespace tersum::test
