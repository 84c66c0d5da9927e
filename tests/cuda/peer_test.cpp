// Ranks as processes with one GPU each: memory handles between them, and what happens when one
// dies.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <thread>

#include "cuda/collective_cases.hpp"
#include "cuda/collective_graph.hpp"
#include "cuda/copies.hpp"
#include "cuda/device.hpp"
#include "cuda/error.hpp"

namespace tersum::gpu {
namespace {

using test::copy_now;

using std::chrono::milliseconds;

PeerSettings test_settings() {
  PeerSettings settings;
  settings.timeout = milliseconds(5'000);
  settings.staging_bytes = std::size_t{1} << 20;
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
    copy_now(memory.data() + 4096, own.data(), own.size());
    const PeerBuffers parts = map.map({memory.data() + 4096, 1000, MemoryType::Cuda, nullptr});
    const PeerBuffers whole = map.map(memory);
    require(parts.complete() && whole.complete(), "everything is mapped");
    require(map.open_count() == 1, "one allocation is opened once");
    const auto peer = static_cast<std::size_t>(1 - role.rank);
    require(parts.data[peer] == whole.data[peer] + 4096, "offsets are kept");
    copy_now(own.data(), parts.data[peer], own.size());
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
    check_everything(rank, Algorithm::Lines, Algorithm::Lines);
    check_everything(rank, Algorithm::Push, Algorithm::Push);
    CollectiveCase test;
    test.algorithm = Algorithm::CopyEngines;
    for (const std::size_t count : {2'500'001, 9'000'000}) {
      test.count = count;
      for (const Collective kind : {Collective::AllReduce, Collective::Broadcast}) {
        test.kind = kind;
        test.in_place = !test.in_place;
        rank.check(test, count);
      }
    }
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
    for (const Algorithm form :
         {Algorithm::Packets, Algorithm::Lines, Algorithm::Push, Algorithm::CopyEngines}) {
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

/// Bytes of device memory in use, pages of the process in memory, and its open files.
struct Footprint {
  std::size_t device_bytes = 0;
  std::size_t resident_pages = 0;
  std::ptrdiff_t files = 0;

  static Footprint now() {
    Footprint footprint;
    std::size_t free = 0, total = 0;
    check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
    footprint.device_bytes = total - free;
    std::ifstream statm("/proc/self/statm");
    std::size_t pages = 0;
    statm >> pages >> footprint.resident_pages;
    footprint.files = std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
    return footprint;
  }
};

TEST_F(PeerTest, AHundredThousandCollectivesLeaveMemoryAndFilesAsTheyWere) {
  const auto results = in_processes([&](const RankRole& role) {
    CollectiveRank rank(role, devices_, test_settings());
    const auto work = [&](int operations) {
      static constexpr Algorithm kForms[] = {Algorithm::Packets, Algorithm::Lines, Algorithm::Push,
                                             Algorithm::CopyEngines};
      CollectiveCase test;
      for (int i = 0; i < operations; ++i) {
        test.kind = static_cast<Collective>(i % kCollectiveCount);
        test.count = static_cast<std::size_t>(1 + i % 1000);
        test.algorithm = i % 100 == 0 ? Algorithm::CopyEngines : kForms[i % 3];
        rank.submit(test, rank.input(), rank.output());
      }
      rank.stream().synchronize();
      require(rank.communicator().status().is_ok(), rank.communicator().status().to_string());
    };
    work(2'000);
    const Footprint before = Footprint::now();
    work(100'000);
    const Footprint after = Footprint::now();
    std::cout << "device bytes " << before.device_bytes << " -> " << after.device_bytes
              << ", resident pages " << before.resident_pages << " -> " << after.resident_pages
              << ", files " << before.files << " -> " << after.files << std::endl;
    require(after.device_bytes == before.device_bytes, "device memory is as before");
    require(after.resident_pages <= before.resident_pages + 1024, "host memory is as before");
    require(after.files == before.files, "files are as before");
    rank.communicator().close();
  });
  EXPECT_TRUE(results.all_succeeded()) << results.to_string();
}

/// Works on until the communicator fails, then checks that the context still works.
Status work_until_failure(CollectiveRank& rank, Algorithm form, bool in_graph) {
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
  check(cudaMemsetAsync(rank.output(), 7, 1000, rank.stream().get()), "set");
  unsigned char byte = 0;
  check(cudaMemcpyAsync(&byte, rank.output() + 999, 1, cudaMemcpyDefault, rank.stream().get()),
        "copy");
  rank.stream().synchronize();
  require(byte == 7, "the context works after the failure");
  return rank.communicator().status();
}

/// Rank 1 gets a signal in the middle of its work.
ProcessPlan plan_with_victim(int signal) {
  ProcessPlan plan;
  plan.victim = 1;
  plan.gathers_before_kill = 6;  // after the set-up
  plan.kill_delay = milliseconds(300);
  plan.kill_signal = signal;
  return plan;
}

void expect_only_the_victim_lost(const ProcessResults& results) {
  ASSERT_EQ(results.wait_status.size(), 2u);
  EXPECT_EQ(results.wait_status[0], 0) << results.to_string();
  EXPECT_TRUE(WIFSIGNALED(results.wait_status[1])) << results.to_string();
  EXPECT_FALSE(results.timed_out);
}

class PeerLoss : public PeerTest,
                 public testing::WithParamInterface<std::tuple<Algorithm, bool, int>> {
 public:
  static std::string name(const testing::TestParamInfo<ParamType>& info) {
    const auto [form, in_graph, signal] = info.param;
    std::string name(to_string(form));
    name.erase(std::remove(name.begin(), name.end(), '-'), name.end());
    return name + (in_graph ? "_graph" : "_eager") + (signal == SIGKILL ? "_killed" : "_stopped");
  }
};

// Nobody tells the survivor: its kernels notice.
TEST_P(PeerLoss, EndsTheSurvivorWithTimeoutAndLeavesItsContextUsable) {
  const auto [form, in_graph, signal] = GetParam();
  expect_only_the_victim_lost(in_processes(
      [&, form = form, in_graph = in_graph](const RankRole& role) {
        PeerSettings settings = test_settings();
        settings.timeout = milliseconds(500);
        CollectiveRank rank(role, devices_, settings);
        rank.stream().synchronize();
        role.all_gather({});
        const Status status = work_until_failure(rank, form, in_graph);
        require(status.code() == Code::Timeout && status.rank() == 1, status.to_string());
      },
      plan_with_victim(signal)));
}

INSTANTIATE_TEST_SUITE_P(Forms, PeerLoss,
                         testing::Combine(testing::Values(Algorithm::Packets, Algorithm::Lines,
                                                          Algorithm::Push, Algorithm::CopyEngines),
                                          testing::Bool(), testing::Values(SIGKILL, SIGSTOP)),
                         PeerLoss::name);

class PeerDeath : public PeerTest, public testing::WithParamInterface<Algorithm> {};

// The survivor hears of the death, as a runtime does from its control plane, long before a timeout.
TEST_P(PeerDeath, LetsAnAbortEndTheSurvivorInsideAGraph) {
  expect_only_the_victim_lost(in_processes(
      [&](const RankRole& role) {
        CollectiveRank rank(role, devices_, test_settings());
        rank.stream().synchronize();
        role.all_gather({});
        std::chrono::steady_clock::time_point aborted;
        std::thread control([&] {
          if (role.rank == 1) return;
          try {
            role.all_gather({});  // never complete
          } catch (const Error&) {
            aborted = std::chrono::steady_clock::now();
            rank.communicator().abort();
          }
        });
        const Status status = work_until_failure(rank, GetParam(), true);
        const auto end = std::chrono::steady_clock::now();
        control.join();
        std::cout << "ended " << std::chrono::duration<double, std::milli>(end - aborted).count()
                  << " ms after the abort" << std::endl;
        require(status.code() == Code::Aborted, status.to_string());
      },
      plan_with_victim(SIGKILL)));
}

INSTANTIATE_TEST_SUITE_P(Forms, PeerDeath,
                         testing::Values(Algorithm::Packets, Algorithm::Lines, Algorithm::Push,
                                         Algorithm::CopyEngines));

}  // namespace
}  // namespace tersum::gpu
