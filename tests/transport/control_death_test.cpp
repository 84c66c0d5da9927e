// Ranks as processes that are killed and stopped. Prints how long the others took to notice.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <iostream>

#include "control_support.hpp"

namespace tersum::transport::testing {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kRanks = 4;

/// What a process tells the test through its pipe; small enough to be written at once.
struct Report {
  char kind = 0;  ///< 'J' joined, 'F' heard of a failure, 'E' the join failed
  int code = 0;
  int rank = 0;
  std::int64_t at_ns = 0;
  char message[128] = {};
};

class Processes {
 public:
  explicit Processes(std::chrono::milliseconds heartbeat_timeout) {
    for (int rank = 0; rank < kRanks; ++rank) start(rank, heartbeat_timeout);
    for (int rank = 0; rank < kRanks; ++rank) EXPECT_EQ(read(rank).kind, 'J');
  }
  ~Processes() {
    for (int rank = 0; rank < kRanks; ++rank) {
      ::kill(pids_[rank], SIGKILL);
      ::waitpid(pids_[rank], nullptr, 0);
      ::close(pipes_[rank]);
    }
  }
  Processes(const Processes&) = delete;
  Processes& operator=(const Processes&) = delete;

  void signal(int rank, int number) { ::kill(pids_[rank], number); }
  Report read(int rank) {
    Report report;
    EXPECT_EQ(::read(pipes_[rank], &report, sizeof(report)), ssize_t{sizeof(report)}) << rank;
    return report;
  }
  /// Every rank but `victim` says that `victim` is lost, and nothing else.
  void expect_loss(int victim, Clock::time_point since, const std::string& words) {
    for (int rank = 0; rank < kRanks; ++rank) {
      if (rank == victim) continue;
      const Report report = read(rank);
      EXPECT_EQ(report.kind, 'F');
      EXPECT_EQ(report.code, static_cast<int>(Code::PeerLost)) << report.message;
      EXPECT_EQ(report.rank, victim) << report.message;
      EXPECT_NE(std::string(report.message).find(words), std::string::npos) << report.message;
      const auto took = std::chrono::nanoseconds(report.at_ns) - since.time_since_epoch();
      std::cout << "rank " << rank << " heard \"" << report.message << "\" after "
                << std::chrono::duration<double, std::milli>(took).count() << " ms\n";
    }
  }

 private:
  void start(int rank, std::chrono::milliseconds heartbeat_timeout) {
    int ends[2];
    ASSERT_EQ(::pipe(ends), 0);
    pids_[rank] = ::fork();
    if (pids_[rank] == 0) {
      ::close(ends[0]);
      be(rank, heartbeat_timeout, ends[1]);
      ::_exit(0);
    }
    ::close(ends[1]);
    pipes_[rank] = ends[0];
  }
  void be(int rank, std::chrono::milliseconds heartbeat_timeout, int pipe) {
    const auto tell = [&](char kind, const Status& status) {
      Report report;
      report.kind = kind;
      report.code = static_cast<int>(status.code());
      report.rank = status.rank();
      report.at_ns = std::chrono::nanoseconds(Clock::now().time_since_epoch()).count();
      std::strncpy(report.message, status.message().c_str(), sizeof(report.message) - 1);
      if (::write(pipe, &report, sizeof(report)) != ssize_t{sizeof(report)}) ::_exit(1);
    };
    TestRank self(request_of(rank, kRanks, port_.port()));
    self.request.heartbeat_timeout = heartbeat_timeout;
    if (!self.join_and_start()) return tell('E', *self.join_error);
    tell('J', {});
    if (self.run_until_failure()) tell('F', self.news.failures[0]);
    self.plane.reset();
  }

  FreePort port_;
  pid_t pids_[kRanks] = {};
  int pipes_[kRanks] = {};
};

TEST(ControlDeath, KilledRankIsNamedByAllOthers) {
  Processes job(kPatience);
  const auto since = Clock::now();
  job.signal(2, SIGKILL);
  job.expect_loss(2, since, "rank 2 died");
}

TEST(ControlDeath, KilledRankZeroIsNamedByAllOthers) {
  Processes job(kPatience);
  const auto since = Clock::now();
  job.signal(0, SIGKILL);
  job.expect_loss(0, since, "rank 0 died");
}

TEST(ControlDeath, StoppedRankIsNamedByAllOthersAndHearsOfItWhenItGoesOn) {
  Processes job(1s);
  const auto since = Clock::now();
  job.signal(3, SIGSTOP);
  job.expect_loss(3, since, "rank 3 hangs");
  job.signal(3, SIGCONT);
  const Report late = job.read(3);
  EXPECT_EQ(late.kind, 'F');
  EXPECT_EQ(late.rank, 3) << late.message;
}

TEST(ControlDeath, StoppedRankZeroIsNamedByAllOthers) {
  Processes job(1s);
  const auto since = Clock::now();
  job.signal(0, SIGSTOP);
  job.expect_loss(0, since, "rank 0 hangs");
}

}  // namespace
}  // namespace tersum::transport::testing
