// tersum-run as its users see it: exit codes, output, signals, and nothing left behind.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
using ::testing::UnorderedElementsAre;

constexpr auto kPatience = 60s;  // never reached by a launcher that works

/// tersum-run with some arguments, its standard streams being pipes, but for those that are closed
/// and an output that goes to a file.
class Process {
 public:
  explicit Process(std::vector<std::string> arguments, const std::vector<int>& closed = {},
                   const char* output_file = nullptr) {
    arguments.insert(arguments.begin(), TERSUM_RUN);
    std::array<std::array<int, 2>, 3> pipes;
    for (auto& pipe : pipes) EXPECT_EQ(::pipe2(pipe.data(), O_CLOEXEC), 0);
    std::vector<char*> pointers;
    for (std::string& argument : arguments) pointers.push_back(argument.data());
    pointers.push_back(nullptr);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::dup2(pipes[0][0], 0);
      ::dup2(pipes[1][1], 1);
      ::dup2(pipes[2][1], 2);
      if (output_file != nullptr) ::dup2(::open(output_file, O_WRONLY | O_CLOEXEC), 1);
      for (const int descriptor : closed) ::close(descriptor);
      ::execv(pointers[0], pointers.data());
      ::_exit(99);
    }
    ::close(pipes[0][0]);
    ::close(pipes[1][1]);
    ::close(pipes[2][1]);
    input_ = pipes[0][1];
    streams_ = {pipes[1][0], pipes[2][0]};
  }
  ~Process() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
    close_input();
    for (const int stream : streams_) {
      if (stream >= 0) ::close(stream);
    }
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  void write_input(const std::string& text) {
    EXPECT_EQ(::write(input_, text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }
  void close_input() {
    if (input_ >= 0) ::close(input_);
    input_ = -1;
  }
  void close_output() {
    ::close(streams_[0]);
    streams_[0] = -1;
  }
  void signal(int number) { ::kill(pid_, number); }

  /// Reads until the standard output holds `text`.
  void wait_for(const std::string& text) {
    while (out_.find(text) == std::string::npos) {
      ASSERT_TRUE(read_some()) << "no '" << text << "' in: " << out_ << err_;
    }
  }
  /// The exit code, or -signal. Standard streams have been read to their ends.
  int finish() {
    while (read_some()) {
    }
    int status = 0;
    EXPECT_EQ(::waitpid(pid_, &status, 0), pid_);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }
  const std::string& out() const { return out_; }
  const std::string& err() const { return err_; }
  std::vector<std::string> lines() const {
    std::vector<std::string> lines;
    std::istringstream stream(out_);
    for (std::string line; std::getline(stream, line);) lines.push_back(line);
    return lines;
  }
  /// The numbers that stand behind `word` in the output: process ids that ranks have printed.
  std::vector<pid_t> numbers_after(const std::string& word) const {
    std::vector<pid_t> numbers;
    for (std::size_t at = 0; (at = out_.find(word, at)) != std::string::npos;) {
      at += word.size();
      numbers.push_back(std::stoi(out_.substr(at)));
    }
    return numbers;
  }

 private:
  bool read_some() {
    std::array<pollfd, 2> polled{{{streams_[0], POLLIN, 0}, {streams_[1], POLLIN, 0}}};
    if (streams_[0] < 0 && streams_[1] < 0) return false;
    if (::poll(polled.data(), 2, std::chrono::milliseconds(kPatience).count()) <= 0) {
      ADD_FAILURE() << "tersum-run hangs; so far: " << out_ << err_;
      return false;
    }
    for (std::size_t i = 0; i < 2; ++i) {
      if (!polled[i].revents) continue;
      std::array<char, 65536> chunk;
      const ssize_t count = ::read(streams_[i], chunk.data(), chunk.size());
      if (count > 0) {
        (i == 0 ? out_ : err_).append(chunk.data(), static_cast<std::size_t>(count));
      } else {
        ::close(streams_[i]);
        streams_[i] = -1;
      }
    }
    return true;
  }

  pid_t pid_ = -1;
  int input_ = -1;
  std::array<int, 2> streams_{-1, -1};
  std::string out_;
  std::string err_;
};

std::vector<std::string> sh(int ranks, const std::string& script,
                            std::vector<std::string> options = {}) {
  std::vector<std::string> arguments = {"-n", std::to_string(ranks)};
  arguments.insert(arguments.end(), options.begin(), options.end());
  arguments.insert(arguments.end(), {"--", "sh", "-c", script});
  return arguments;
}

/// No process of the groups that the ranks have printed as "group=<pid>" is left, zombies included.
void expect_no_group_left(const Process& run, std::size_t count) {
  const auto groups = run.numbers_after("group=");
  EXPECT_EQ(groups.size(), count);
  for (const pid_t group : groups) {
    EXPECT_EQ(::kill(-group, 0), -1) << group;
    EXPECT_EQ(errno, ESRCH);
  }
}

TEST(TersumRun, GivesEachRankItsVariables) {
  Process run(sh(3,
                 "echo $TERSUM_RANK/$TERSUM_SIZE $TERSUM_LOCAL_RANK/$TERSUM_LOCAL_SIZE "
                 "$TERSUM_ROOT,$TERSUM_JOB,$TERSUM_SECRET"));
  EXPECT_EQ(run.finish(), 0);
  std::set<std::string> own;
  std::set<std::string> common;
  for (const std::string& line : run.lines()) {
    const std::size_t cut = line.rfind(' ');
    own.insert(line.substr(0, cut));
    common.insert(line.substr(cut));
  }
  EXPECT_THAT(own, UnorderedElementsAre("[0] 0/3 0/3", "[1] 1/3 1/3", "[2] 2/3 2/3"));
  ASSERT_EQ(common.size(), 1u);
  EXPECT_THAT(*common.begin(),
              ::testing::MatchesRegex(" 127.0.0.1:[0-9]+,tersum-run-[0-9a-f]+,[0-9a-f]+"));
  EXPECT_EQ(common.begin()->size() - common.begin()->rfind(',') - 1, 64u);  // the secret
}

TEST(TersumRun, TwoJobsHaveTwoSecrets) {
  Process first(sh(1, "echo $TERSUM_SECRET"));
  Process second(sh(1, "echo $TERSUM_SECRET"));
  EXPECT_EQ(first.finish(), 0);
  EXPECT_EQ(second.finish(), 0);
  EXPECT_NE(first.out(), second.out());
}

TEST(TersumRun, PassesVariablesAndOverridesInherited) {
  ::setenv("TERSUM_RANK", "77", 1);
  Process run(
      sh(1, "echo \"$A-$B-$TERSUM_RANK\"", {"--env", "A=1", "--env", "B=x=y", "--env", "A=2"}));
  ::unsetenv("TERSUM_RANK");
  EXPECT_EQ(run.finish(), 0);
  EXPECT_EQ(run.out(), "[0] 2-x=y-0\n");
}

TEST(TersumRun, TakesTheProgramWithoutDashesToo) {
  Process run({"-n", "1", "sh", "-c", "echo \"$@\"", "name", "-x", "--", "--n"});
  EXPECT_EQ(run.finish(), 0);
  EXPECT_EQ(run.out(), "[0] -x -- --n\n");
}

TEST(TersumRun, ExplainsWrongUse) {
  for (const std::vector<std::string>& wrong :
       {std::vector<std::string>{},
        {"-n", "2"},
        {"-n", "2", "--"},
        {"-n", "0", "--", "true"},
        {"-n", "x", "--", "true"},
        {"--", "true"},
        {"-n", "1", "--env", "A", "--", "true"},
        {"-n", "1", "--env", "TERSUM_RANK=5", "--", "true"},
        {"-n", "1", "--timeout-kill", "-5", "--", "true"}}) {
    Process run(wrong);
    EXPECT_EQ(run.finish(), 2);
    EXPECT_THAT(run.err(), Not(""));
  }
  Process help({"--help"});
  EXPECT_EQ(help.finish(), 0);
  EXPECT_THAT(help.out(), AllOf(HasSubstr("--timeout-kill"), HasSubstr("TERSUM_RANK")));
}

TEST(TersumRun, RefusesVariablesThatItSetsItself) {
  for (const std::string name :
       {"RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "ROOT", "SECRET", "JOB"}) {
    Process run(sh(1, "echo started", {"--env", "TERSUM_" + name + "=5"}));
    EXPECT_EQ(run.finish(), 2);
    EXPECT_THAT(run.err(), HasSubstr("TERSUM_" + name + " is set by tersum-run"));
    EXPECT_EQ(run.out(), "");
  }
  Process other(sh(1, "echo $TERSUM_THREADS", {"--env", "TERSUM_THREADS=2"}));
  EXPECT_EQ(other.finish(), 0);
  EXPECT_EQ(other.out(), "[0] 2\n");
}

TEST(TersumRun, RunsWithoutStandardDescriptors) {
  for (const std::vector<int>& closed :
       {std::vector<int>{0}, {1}, {2}, {0, 1}, {0, 2}, {1, 2}, {0, 1, 2}}) {
    Process run(sh(2, "read line && exit 9; echo out; echo err >&2; exit 3"), closed);
    run.close_input();
    EXPECT_EQ(run.finish(), 3);
    const auto is_open = [&](int descriptor) {
      return std::find(closed.begin(), closed.end(), descriptor) == closed.end();
    };
    EXPECT_THAT(run.out(), is_open(1) ? HasSubstr("] out\n") : HasSubstr(""));
    EXPECT_THAT(run.err(), is_open(2) ? HasSubstr("] err\n") : HasSubstr(""));
  }
}

TEST(TersumRun, SaysThatOutputCouldNotBeWritten) {
  if (access("/dev/full", W_OK) != 0) GTEST_SKIP() << "no /dev/full";
  Process run(sh(2, "echo lost"), {}, "/dev/full");
  EXPECT_EQ(run.finish(), 1);
  EXPECT_THAT(run.err(), HasSubstr("cannot write the standard output: No space left"));
  Process failing(sh(2, "echo lost; exit 3"), {}, "/dev/full");
  EXPECT_EQ(failing.finish(), 3);
  Process help({"--help"}, {}, "/dev/full");
  EXPECT_EQ(help.finish(), 1);
  EXPECT_THAT(help.err(), HasSubstr("cannot write the standard output"));
}

TEST(TersumRun, NamesAProgramThatIsNotFound) {
  Process run({"-n", "3", "--", "no-such-program-anywhere"});
  EXPECT_EQ(run.finish(), 127);
  EXPECT_THAT(run.err(), HasSubstr("program not found: no-such-program-anywhere"));
  Process directory({"-n", "1", "--", "/"});
  EXPECT_EQ(directory.finish(), 126);
}

TEST(TersumRun, ExitsWithTheCodeOfTheFirstThatFailed) {
  // Rank 0 waits for the end of rank 2 and fails then; rank 1 would wait for ever.
  Process run(sh(3,
                 "case $TERSUM_RANK in 0) trap 'exit 9' TERM;; 2) exit 5;; esac; "
                 "while :; do sleep 0.05; done",
                 {"--timeout-kill", "50"}));
  EXPECT_EQ(run.finish(), 5);
  EXPECT_THAT(run.err(), HasSubstr("rank 2 exited with code 5"));
}

TEST(TersumRun, ExitsWith128AndTheSignalOfARankThatWasKilled) {
  Process run(sh(2, "[ $TERSUM_RANK = 1 ] && kill -9 $$; sleep 1000", {"--timeout-kill", "50"}));
  EXPECT_EQ(run.finish(), 128 + SIGKILL);
  EXPECT_THAT(run.err(), HasSubstr("rank 1 was killed by signal 9"));
}

TEST(TersumRun, SharedMemoryOfKilledRanksGoesWithTheJob) {
  if (access("/dev/shm", W_OK) != 0) GTEST_SKIP() << "no /dev/shm";
  Process run(sh(2,
                 "echo segment > $UCX_POSIX_DIR/$TERSUM_RANK; echo folder=$UCX_POSIX_DIR; "
                 "[ $TERSUM_RANK = 1 ] && kill -9 $$; sleep 1000",
                 {"--timeout-kill", "50"}));
  EXPECT_EQ(run.finish(), 128 + SIGKILL);
  const std::size_t at = run.out().find("folder=") + 7;
  const std::string folder = run.out().substr(at, run.out().find('\n', at) - at);
  EXPECT_THAT(folder, StartsWith("/dev/shm/tersum-run-"));
  EXPECT_NE(access(folder.c_str(), F_OK), 0);
}

TEST(TersumRun, SharedMemoryOfAJobWhoseLauncherWasKilledGoesWithTheNext) {
  if (access("/dev/shm", W_OK) != 0) GTEST_SKIP() << "no /dev/shm";
  const pid_t gone = fork();
  if (gone == 0) _exit(0);
  waitpid(gone, nullptr, 0);
  const std::string stale = "/dev/shm/tersum-run-" + std::to_string(gone);
  const std::string alive = "/dev/shm/tersum-run-" + std::to_string(getpid());
  for (const std::string& folder : {stale, alive}) ASSERT_EQ(mkdir(folder.c_str(), 0700), 0);
  Process run(sh(1, "true"));
  EXPECT_EQ(run.finish(), 0);
  EXPECT_NE(access(stale.c_str(), F_OK), 0);
  EXPECT_EQ(access(alive.c_str(), F_OK), 0);
  rmdir(alive.c_str());
}

TEST(TersumRun, LetsTheOthersFinishWithinTheGracePeriod) {
  Process run(sh(2,
                 "[ $TERSUM_RANK = 1 ] && exit 3; "
                 "trap 'echo terminated' TERM; sleep 0.2; echo reported",
                 {"--timeout-kill", "60000"}));
  EXPECT_EQ(run.finish(), 3);
  EXPECT_THAT(run.out(), AllOf(HasSubstr("[0] reported"), Not(HasSubstr("terminated"))));
}

TEST(TersumRun, EndsRanksThatIgnoreSigtermAndTheirChildren) {
  Process run(sh(3,
                 "trap '' TERM; echo group=$$; [ $TERSUM_RANK = 1 ] && { sleep 0.3; exit 4; }; "
                 "(trap '' TERM; sleep 1000) & wait; sleep 1000",
                 {"--timeout-kill", "50"}));
  EXPECT_EQ(run.finish(), 4);
  expect_no_group_left(run, 3);
}

TEST(TersumRun, EndsWhatASuccessfulRankLeavesInItsGroup) {
  Process run(sh(2, "echo group=$$; sleep 1000 & exit 0"));
  EXPECT_EQ(run.finish(), 0);
  expect_no_group_left(run, 2);
}

TEST(TersumRun, StartsEachRankInAGroupOfItsOwn) {
  Process run(sh(2, "echo pid=$$; ps -o pgid= -p $$ | sed 's/^ */pgid=/'"));
  EXPECT_EQ(run.finish(), 0);
  auto pids = run.numbers_after("pid=");
  auto groups = run.numbers_after("pgid=");
  EXPECT_EQ(std::set(pids.begin(), pids.end()), std::set(groups.begin(), groups.end()));
  EXPECT_EQ(std::set(groups.begin(), groups.end()).size(), 2u);
}

TEST(TersumRun, ForwardsSignalsToAllRanks) {
  for (const auto& [number, name] : {std::pair{SIGINT, "INT"},
                                     {SIGTERM, "TERM"},
                                     {SIGHUP, "HUP"},
                                     {SIGUSR1, "USR1"},
                                     {SIGUSR2, "USR2"}}) {
    Process run(sh(3, std::string("trap 'echo got; exit 0' ") + name +
                          "; echo ready $TERSUM_RANK; while :; do sleep 0.02; done"));
    for (const char* ready : {"ready 0", "ready 1", "ready 2"}) run.wait_for(ready);
    run.signal(number);
    EXPECT_EQ(run.finish(), 0);
    for (const char* got : {"[0] got", "[1] got", "[2] got"})
      EXPECT_THAT(run.out(), HasSubstr(got));
  }
}

TEST(TersumRun, EndsOnAnInterruptLikeItsRanks) {
  Process run(sh(2, "echo ready $TERSUM_RANK group=$$; exec sleep 1000"));
  run.wait_for("ready 0");
  run.wait_for("ready 1");
  run.signal(SIGINT);
  EXPECT_EQ(run.finish(), 128 + SIGINT);
  expect_no_group_left(run, 2);
}

TEST(TersumRun, KillsRanksThatIgnoreInterruptsAtTheThird) {
  Process run(sh(2,
                 "n=0; trap 'n=$((n+1)); echo $TERSUM_RANK:$n' INT; echo ready $TERSUM_RANK; "
                 "while :; do sleep 0.02; done"));
  run.wait_for("ready 0");
  run.wait_for("ready 1");
  for (const char* count : {"1", "2"}) {
    run.signal(SIGINT);
    run.wait_for(std::string("0:") + count);
    run.wait_for(std::string("1:") + count);
  }
  run.signal(SIGINT);
  EXPECT_EQ(run.finish(), 128 + SIGKILL);
}

TEST(TersumRun, RanksDieWithATersumRunThatIsKilled) {
  // This process adopts the ranks, and so sees them end.
  ASSERT_EQ(::prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
  Process run(sh(2, "echo group=$$; exec sleep 1000"));
  run.wait_for("[0] group=");
  run.wait_for("[1] group=");
  run.signal(SIGKILL);
  EXPECT_EQ(run.finish(), -SIGKILL);
  for (const pid_t pid : run.numbers_after("group=")) {
    int status = 0;
    EXPECT_EQ(::waitpid(pid, &status, 0), pid);
    EXPECT_TRUE(WIFSIGNALED(status));
  }
  ::prctl(PR_SET_CHILD_SUBREAPER, 0);
}

TEST(TersumRun, NeverMixesLinesOfRanks) {
  const std::string script =
      "i=0; while [ $i -lt 300 ]; do printf '%s' a$TERSUM_RANK; printf '%s\\n' b$TERSUM_RANK.$i; "
      "i=$((i+1)); done";
  Process run(sh(4, script));
  EXPECT_EQ(run.finish(), 0);
  std::array<int, 4> next{};
  for (const std::string& line : run.lines()) {
    ASSERT_GT(line.size(), 4u);
    const std::size_t rank = static_cast<std::size_t>(line[1] - '0');
    ASSERT_LT(rank, 4u) << line;
    const std::string r = std::to_string(rank);
    EXPECT_EQ(line, "[" + r + "] a" + r + "b" + r + "." + std::to_string(next[rank]++));
  }
  EXPECT_THAT(next, ::testing::Each(300));
}

TEST(TersumRun, KeepsTheStandardErrorApart) {
  Process run(sh(1, "echo out; echo err >&2"));
  EXPECT_EQ(run.finish(), 0);
  EXPECT_EQ(run.out(), "[0] out\n");
  EXPECT_EQ(run.err(), "[0] err\n");
}

TEST(TersumRun, LosesNothingOfALargeOutput) {
  Process run(sh(2, "seq 1 50000", {"--no-prefix"}));
  EXPECT_EQ(run.finish(), 0);
  std::vector<std::string> lines = run.lines();
  EXPECT_EQ(lines.size(), 100'000u);
  EXPECT_EQ(std::set(lines.begin(), lines.end()).size(), 50'000u);
}

TEST(TersumRun, EndsALastLineWithoutAnEnd) {
  Process run(sh(2, "printf 'no end'"));
  EXPECT_EQ(run.finish(), 0);
  EXPECT_THAT(run.lines(), UnorderedElementsAre("[0] no end", "[1] no end"));
}

TEST(TersumRun, GivesItsInputToRankZeroOnly) {
  Process run(sh(2, "cat; echo end"));
  run.wait_for("[1] end");  // it reads /dev/null, while our pipe is still open
  run.write_input("hello\n");
  run.close_input();
  EXPECT_EQ(run.finish(), 0);
  EXPECT_THAT(run.lines(), UnorderedElementsAre("[0] hello", "[0] end", "[1] end"));
}

TEST(TersumRun, GoesOnWhenNobodyReadsItsOutput) {
  Process run(sh(2, "echo ready $TERSUM_RANK; cat >/dev/null; seq 1 20000; exit 6",
                 {"--timeout-kill", "60000"}));
  run.wait_for("ready 0");
  run.close_output();
  run.close_input();
  EXPECT_EQ(run.finish(), 6);
}

TEST(TersumRun, StartsAJobThatJoins) {
  for (int round = 0; round < 5; ++round) {
    Process run({"-n", "4", "--", TERSUM_JOIN_PROGRAM});
    EXPECT_EQ(run.finish(), 0) << run.err();
    EXPECT_THAT(run.lines(), UnorderedElementsAre("[0] joined 4", "[1] joined 4", "[2] joined 4",
                                                  "[3] joined 4"));
  }
}

TEST(TersumRun, OthersNameTheRankThatDiedBeforeTheyAreEnded) {
  Process run({"-n", "3", "--timeout-kill", "60000", "--", TERSUM_JOIN_PROGRAM, "1"});
  EXPECT_EQ(run.finish(), 128 + SIGKILL);
  EXPECT_THAT(run.out(), AllOf(HasSubstr("[0] PeerLost: rank 1 died"),
                               HasSubstr("[2] PeerLost: rank 1 died")));
}

}  // namespace
