// Ranks as processes: the test's own program again, started with the variables of a launcher to run
// the test DeviceRank.Runs, which does what role() says.
#pragma once

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace tersum::test {

/// Of this process in a Job; empty outside of one.
inline std::string role() {
  const char* value = std::getenv("TERSUM_TEST_ROLE");
  return value != nullptr ? value : "";
}

/// A port that was free just now.
inline int free_port() {
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
  Job(const std::string& hosts, const std::string& role_name,
      const std::vector<std::string>& settings = {}) {
    const std::string root = "127.0.0.1:" + std::to_string(free_port());
    for (std::size_t rank = 0; rank < hosts.size(); ++rank) {
      std::vector<std::string> variables = settings;
      variables.insert(
          variables.end(),
          {"TERSUM_TEST_ROLE=" + role_name, "TERSUM_RANK=" + std::to_string(rank),
           "TERSUM_SIZE=" + std::to_string(hosts.size()), "TERSUM_HOST_ID=" + hosts.substr(rank, 1),
           "TERSUM_ROOT=" + root, "TERSUM_INTERFACE=lo", "TERSUM_HEARTBEAT_TIMEOUT_MS=3000"});
      pids_.push_back(start(std::move(variables)));
    }
  }
  ~Job() {
    for (const pid_t pid : pids_)
      if (pid > 0) ::kill(pid, SIGKILL);
    for (std::size_t rank = 0; rank < pids_.size(); ++rank) status_of(rank);
  }
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  /// Waits for a rank: its exit code, or minus the signal that ended it. One that is still there
  /// two minutes after the start is killed: it hangs.
  int status_of(std::size_t rank) {
    pid_t& pid = pids_[rank];
    int status = 0;
    if (pid > 0) {
      pid_t ended = 0;
      while ((ended = ::waitpid(pid, &status, WNOHANG)) == 0) {
        if (std::chrono::steady_clock::now() > deadline_) ::kill(pid, SIGKILL);
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      }
      EXPECT_EQ(ended, pid) << "waitpid";
    }
    pid = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

 private:
  static pid_t start(std::vector<std::string> variables) {
    std::string filter = "--gtest_filter=DeviceRank.Runs", program = "/proc/self/exe";
    std::vector<char*> arguments{program.data(), filter.data(), nullptr}, environment;
    for (std::string& variable : variables) environment.push_back(variable.data());
    for (char** entry = ::environ; *entry != nullptr; ++entry)
      if (!std::string_view(*entry).starts_with("CUDA_DEVICE_MAX_CONNECTIONS="))
        environment.push_back(*entry);
    environment.push_back(nullptr);
    pid_t pid = -1;
    EXPECT_EQ(::posix_spawn(&pid, "/proc/self/exe", nullptr, nullptr, arguments.data(),
                            environment.data()),
              0);
    return pid;
  }

  const std::chrono::steady_clock::time_point deadline_ =
      std::chrono::steady_clock::now() + std::chrono::minutes(2);
  std::vector<pid_t> pids_;
};

}  // namespace tersum::test
