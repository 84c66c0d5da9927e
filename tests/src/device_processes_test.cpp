// Collectives on device memory between processes, and what is left of them when one dies. Ranks are
// this program again, started with the variables of a launcher and one test to run.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "src/device_checks.hpp"
#include "transport/ucx_transport.hpp"

namespace tersum::test {
namespace {

using Seconds = std::chrono::duration<double>;

constexpr std::size_t kCount = 3'000'001;

const char* role() {
  const char* value = std::getenv("TERSUM_TEST_ROLE");
  return value != nullptr ? value : "";
}

/// A port that was free just now.
int free_port() {
  const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  EXPECT_EQ(::bind(socket, reinterpret_cast<sockaddr*>(&address), length), 0);
  EXPECT_EQ(::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &length), 0);
  ::close(socket);
  return ntohs(address.sin_port);
}

/// One process for each letter of `hosts`, which says on which host it believes to be.
class Job {
 public:
  Job(const std::string& hosts, const std::string& role_name, const std::string& staging = "auto") {
    const std::string root = "127.0.0.1:" + std::to_string(free_port());
    for (std::size_t rank = 0; rank < hosts.size(); ++rank)
      pids_.push_back(start({"TERSUM_TEST_ROLE=" + role_name, "TERSUM_RANK=" + std::to_string(rank),
                             "TERSUM_SIZE=" + std::to_string(hosts.size()),
                             "TERSUM_HOST_ID=" + hosts.substr(rank, 1), "TERSUM_ROOT=" + root,
                             "TERSUM_INTERFACE=lo", "TERSUM_HEARTBEAT_TIMEOUT_MS=3000",
                             "TERSUM_DEVICE_STAGING=" + staging}));
  }
  ~Job() {
    for (const pid_t pid : pids_)
      if (pid > 0) ::kill(pid, SIGKILL);
    for (std::size_t rank = 0; rank < pids_.size(); ++rank) status_of(rank);
  }
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  /// Waits for a rank: its exit code, or minus the signal that ended it.
  int status_of(std::size_t rank) {
    pid_t& pid = pids_[rank];
    int status = 0;
    if (pid > 0) {
      while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
      }
    }
    pid = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

 private:
  static pid_t start(std::vector<std::string> variables) {
    std::string filter = "--gtest_filter=DeviceRank.Runs", program = "/proc/self/exe";
    std::vector<char*> arguments{program.data(), filter.data(), nullptr}, environment;
    for (std::string& variable : variables) environment.push_back(variable.data());
    for (char** entry = ::environ; *entry != nullptr; ++entry) environment.push_back(*entry);
    environment.push_back(nullptr);
    pid_t pid = -1;
    EXPECT_EQ(::posix_spawn(&pid, "/proc/self/exe", nullptr, nullptr, arguments.data(),
                            environment.data()),
              0);
    return pid;
  }

  std::vector<pid_t> pids_;
};

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
  if (*role() == 0) GTEST_SKIP() << "a rank of the tests below";
  const std::string what = role();
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
  Job job(GetParam(), "everything", "ucx");
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
