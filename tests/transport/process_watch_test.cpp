// Deaths of child processes, as ProcessWatch sees them.
#include "transport/process_watch.hpp"

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <unistd.h>

namespace tersum::transport {
namespace {

/// A process that sleeps until it is killed; `identity` is what it would say of itself.
struct Sleeper {
  pid_t pid = -1;
  ProcessIdentity identity;

  Sleeper() {
    int ready[2];
    if (pipe(ready) != 0) abort();
    pid = fork();
    if (pid == 0) {
      const ProcessIdentity self = this_process();
      if (write(ready[1], &self, sizeof(self)) != sizeof(self)) _exit(1);
      while (true) pause();
    }
    if (read(ready[0], &identity, sizeof(identity)) != sizeof(identity)) abort();
    close(ready[0]);
    close(ready[1]);
  }
  ~Sleeper() { end(); }
  void end() {
    if (pid < 0) return;
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
    pid = -1;
  }
};

bool readable(int descriptor, int milliseconds) {
  pollfd wakeup{descriptor, POLLIN, 0};
  return poll(&wakeup, 1, milliseconds) == 1;
}

class ProcessWatchTest : public ::testing::Test {
 protected:
  ~ProcessWatchTest() override { close(other_); }
  int other_ = eventfd(0, EFD_NONBLOCK);
  ProcessWatch watch_{other_};
};

TEST_F(ProcessWatchTest, WakesWhenAProcessEnds) {
  Sleeper first, second;
  watch_.add(4, first.identity);
  watch_.add(7, second.identity);
  EXPECT_FALSE(readable(watch_.descriptor(), 0));
  EXPECT_TRUE(watch_.ended().empty());
  second.end();
  EXPECT_TRUE(readable(watch_.descriptor(), 60'000));
  EXPECT_EQ(watch_.ended(), std::vector<int>{7});
  watch_.remove(7);
  EXPECT_TRUE(watch_.ended().empty());
  EXPECT_FALSE(readable(watch_.descriptor(), 0));
}

TEST_F(ProcessWatchTest, NoticesAProcessThatEndedBefore) {
  Sleeper sleeper;
  sleeper.end();
  watch_.add(1, sleeper.identity);
  EXPECT_EQ(watch_.ended(), std::vector<int>{1});
  watch_.remove(1);
  EXPECT_TRUE(watch_.ended().empty());
}

TEST_F(ProcessWatchTest, IsNotFooledByAReusedPid) {
  Sleeper sleeper;
  ProcessIdentity earlier = sleeper.identity;
  earlier.started -= 1;  // the pid's former owner
  watch_.add(1, earlier);
  EXPECT_EQ(watch_.ended(), std::vector<int>{1});
}

TEST_F(ProcessWatchTest, LeavesProcessesOfOtherHostsAlone) {
  Sleeper sleeper;
  ProcessIdentity elsewhere = sleeper.identity;
  elsewhere.host ^= 1;
  watch_.add(1, elsewhere);
  watch_.add(2, this_process());
  sleeper.end();
  EXPECT_TRUE(watch_.ended().empty());
  EXPECT_FALSE(readable(watch_.descriptor(), 0));
}

TEST_F(ProcessWatchTest, WakesForTheOtherDescriptorToo) {
  EXPECT_FALSE(readable(watch_.descriptor(), 0));
  ASSERT_EQ(eventfd_write(other_, 1), 0);
  EXPECT_TRUE(readable(watch_.descriptor(), 0));
}

}  // namespace
}  // namespace tersum::transport
