// Ranks as processes with one GPU each: memory handles between them, and what happens when one
// dies.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <chrono>
#include <cstdlib>
#include <iostream>
#include <thread>

#include "cuda/collective_cases.hpp"
#include "cuda/collective_graph.hpp"
#include "cuda/device.hpp"
#include "cuda/error.hpp"

namespace tersum::gpu {
namespace {

using std::chrono::milliseconds;

PeerSettings test_settings() {
  PeerSettings settings;
  settings.timeout = milliseconds(5'000);
  settings.copy_engines = true;
  settings.slice_bytes = std::size_t{1} << 20;
  return settings;
}

class PeerTest : public testing::Test {
 protected:
  void SetUp() override {
    unsetenv("CUDA_DEVICE_MAX_CONNECTIONS");  // other tests set it; start-up is slow with it
    if (!has_device()) GTEST_SKIP() << "no GPU";
    devices_ = static_cast<int>(devices().size());
    if (devices_ < 2) GTEST_SKIP() << "one GPU: ranks in processes need one each";
  }

  /// In the test's own process: runs this test again in two new processes and gives their ends. In
  /// those: runs `body` and exits, with 0 if it returned.
  ProcessResults in_processes(const std::function<void(const RankRole&)>& body,
                              ProcessPlan plan = {}) const {
    if (is_rank_process()) {
      int code = 0;
      try {
        const RankRole role = rank_process_role();
        body(role);
      } catch (const std::exception& error) {
        std::cerr << "rank: " << error.what() << std::endl;
        code = 1;
      }
      std::exit(code);  // destructors of static objects run: the process ends as a user's would
    }
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    plan.arguments = {std::string("--gtest_filter=") + info->test_suite_name() + "." +
                      info->name()};
    return run_processes(plan);
  }

  int devices_ = 1;
};

void require(bool condition, const std::string& what) {
  if (!condition) throw std::runtime_error(what);
}

TEST_F(PeerTest, MapsMemoryOfAnotherProcessAtAnyOffset) {
  const auto results = in_processes([&](const RankRole& role) {
    const DeviceGuard guard(role.rank);
    PeerMap map(role.rank, role.size, role.all_gather);
    require(!map.is_local(1 - role.rank), "processes are told apart");
    const DeviceBuffer memory(1 << 20);
    std::vector<unsigned char> own(1000, static_cast<unsigned char>(role.rank + 1));
    check(cudaMemcpy(memory.data() + 4096, own.data(), own.size(), cudaMemcpyDefault), "copy");
    const PeerBuffers parts = map.map({memory.data() + 4096, 1000, MemoryType::Cuda, nullptr});
    const PeerBuffers whole = map.map(memory);
    require(parts.complete() && whole.complete(), "everything is mapped");
    require(map.open_count() == 1, "one allocation is opened once");
    const auto peer = static_cast<std::size_t>(1 - role.rank);
    require(parts.data[peer] == whole.data[peer] + 4096, "offsets are kept");
    check(cudaMemcpy(own.data(), parts.data[peer], own.size(), cudaMemcpyDefault), "copy");
    require(own[0] == peer + 1 && own[999] == peer + 1, "the peer's bytes");
    map.close();
    require(map.open_count() == 0, "all is closed");
  });
  EXPECT_TRUE(results.all_succeeded()) << results.to_string();
}

TEST_F(PeerTest, SaysWhichMemoryCannotBeMapped) {
  const auto results = in_processes([&](const RankRole& role) {
    const DeviceGuard guard(role.rank);
    PeerMap map(role.rank, role.size, role.all_gather);
    const Stream stream;
    void* pooled = nullptr;
    check(cudaMallocAsync(&pooled, 4096, stream.get()), "cudaMallocAsync");
    stream.synchronize();
    require(!is_mappable(pooled), "a memory pool's memory is not mappable");
    const DeviceBuffer plain(4096);
    require(is_mappable(plain.data()), "plain memory is");
    const PeerBuffers buffers = map.map({pooled, 4096, MemoryType::Cuda, nullptr});
    require(!buffers.complete() && !map.agree(buffers.complete()), "and all ranks know");
    map.close();
    check(cudaFreeAsync(pooled, stream.get()), "cudaFreeAsync");
    stream.synchronize();
  });
  EXPECT_TRUE(results.all_succeeded()) << results.to_string();
}

TEST_F(PeerTest, CollectivesBetweenProcessesGiveTheHostsBits) {
  const auto results = in_processes([&](const RankRole& role) {
    CollectiveRank rank(role, devices_, test_settings());
    check_everything(rank, Algorithm::Packets, Algorithm::Packets);
    check_everything(rank, Algorithm::Push, Algorithm::Push);
    CollectiveCase test;
    test.algorithm = Algorithm::CopyEngines;
    test.count = 5'000'001;
    rank.check(test, 1);
    test.in_place = true;
    rank.check(test, 2);
    rank.communicator().close();
  });
  EXPECT_TRUE(results.all_succeeded()) << results.to_string();
}

TEST_F(PeerTest, TensorsOfAMemoryPoolAreUsedInPlace) {
  const auto results = in_processes([&](const RankRole& role) {
    CollectiveRank rank(role, devices_, test_settings());
    void* pooled = nullptr;
    check(cudaMallocAsync(&pooled, 1 << 20, rank.stream().get()), "cudaMallocAsync");
    std::vector<float> values(1 << 18, static_cast<float>(role.rank + 1));
    for (const Algorithm form : {Algorithm::Packets, Algorithm::Push, Algorithm::CopyEngines}) {
      const std::size_t count = form == Algorithm::Packets ? 1 << 16 : 1 << 18;
      check(
          cudaMemcpyAsync(pooled, values.data(), 4 * count, cudaMemcpyDefault, rank.stream().get()),
          "copy");
      rank.communicator().all_reduce(pooled, pooled, count, DType::Float32, ReduceOp::Sum,
                                     rank.stream(), {}, form);
      std::vector<float> result(count);
      check(
          cudaMemcpyAsync(result.data(), pooled, 4 * count, cudaMemcpyDefault, rank.stream().get()),
          "copy");
      rank.stream().synchronize();
      require(result.front() == 3.0f && result.back() == 3.0f, "the sum");
    }
    check(cudaFreeAsync(pooled, rank.stream().get()), "cudaFreeAsync");
    rank.communicator().close();
  });
  EXPECT_TRUE(results.all_succeeded()) << results.to_string();
}

/// Works on until the communicator fails; then the context must still work.
void work_until_failure(CollectiveRank& rank, Algorithm form, bool in_graph) {
  CollectiveCase test;
  test.algorithm = form;
  test.count = form == Algorithm::Packets ? 4096 : 1'000'000;
  const Graph graph(rank.stream(), [&] {
    for (int i = 0; i < 20; ++i) rank.submit(test, rank.input(), rank.output());
  });
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (rank.communicator().status().is_ok()) {
    require(std::chrono::steady_clock::now() < end, "the failure is noticed");
    if (in_graph) {
      graph.launch(rank.stream());
    } else {
      rank.submit(test, rank.input(), rank.output());
    }
    rank.stream().synchronize();
  }
  const Status status = rank.communicator().status();
  require(status.code() == Code::Timeout && status.rank() == 1, status.to_string());
  check(cudaMemsetAsync(rank.output(), 7, 1000, rank.stream().get()), "set");
  unsigned char byte = 0;
  check(cudaMemcpyAsync(&byte, rank.output() + 999, 1, cudaMemcpyDefault, rank.stream().get()),
        "copy");
  rank.stream().synchronize();
  require(byte == 7, "the context works after the failure");
}

class PeerDeath : public PeerTest,
                  public testing::WithParamInterface<std::tuple<Algorithm, bool>> {};

TEST_P(PeerDeath, EndsTheSurvivorWithAnErrorAndLeavesItsContextUsable) {
  const auto [form, in_graph] = GetParam();
  ProcessPlan plan;
  plan.victim = 1;
  plan.gathers_before_kill = 5;  // after the set-up
  plan.kill_delay = milliseconds(300);
  const auto start = std::chrono::steady_clock::now();
  const auto results = in_processes(
      [&, form = form, in_graph = in_graph](const RankRole& role) {
        PeerSettings settings = test_settings();
        settings.timeout = milliseconds(500);
        CollectiveRank rank(role, devices_, settings);
        rank.stream().synchronize();
        role.all_gather({});
        work_until_failure(rank, form, in_graph);
      },
      plan);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  std::cout << "whole scenario " << seconds.count() << " s\n";
  ASSERT_EQ(results.wait_status.size(), 2u);
  EXPECT_EQ(results.wait_status[0], 0) << results.to_string();
  EXPECT_TRUE(WIFSIGNALED(results.wait_status[1])) << results.to_string();
  EXPECT_FALSE(results.timed_out);
}

INSTANTIATE_TEST_SUITE_P(Forms, PeerDeath,
                         testing::Combine(testing::Values(Algorithm::Packets, Algorithm::Push,
                                                          Algorithm::CopyEngines),
                                          testing::Bool()));

}  // namespace
}  // namespace tersum::gpu
