#include "src/tools/run_job.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <optional>
#include <system_error>

#include "src/tools/run_child.hpp"
#include "src/tools/run_output.hpp"
#include "src/tools/run_shared_memory.hpp"

namespace tersum::tools {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr auto kTermToKill = 1s;
constexpr auto kGroupCheck = 20ms;
constexpr auto kMoment = 200ms;
constexpr std::size_t kMaxBacklogBytes = 1u << 20;  // then ranks wait for the reader of our output
constexpr int kInterruptsToKill = 3;
constexpr std::size_t kReadBytes = 16384;
constexpr int kReadsToEmptyPipe = 64;  // a pipe holds 1 MiB at most, unless made larger
// What tells a rank who it is; Job::start() has the values in the same order.
constexpr std::array<std::string_view, 7> kOwnVariables = {
    "TERSUM_RANK", "TERSUM_SIZE",   "TERSUM_LOCAL_RANK", "TERSUM_LOCAL_SIZE",
    "TERSUM_ROOT", "TERSUM_SECRET", "TERSUM_JOB"};
constexpr std::array kForwarded = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2};

[[noreturn]] void fail(const std::string& what) {
  throw std::system_error(errno, std::generic_category(), what);
}

std::string random_hex(std::size_t bytes) {
  std::vector<unsigned char> values(bytes);
  if (::getrandom(values.data(), bytes, 0) != static_cast<ssize_t>(bytes)) {
    fail("cannot get random numbers");
  }
  std::string text;
  for (const unsigned char value : values) {
    text += "0123456789abcdef"[value >> 4];
    text += "0123456789abcdef"[value & 15];
  }
  return text;
}

/// A free port of 127.0.0.1, kept free for rank 0: the socket is bound but never listens, so the
/// kernel gives the port to nobody else, while rank 0, who binds with SO_REUSEADDR, may listen.
class ReservedPort {
 public:
  ReservedPort() : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const int on = 1;
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    auto* generic = reinterpret_cast<sockaddr*>(&address);
    socklen_t length = sizeof(address);
    if (socket_ < 0 || ::setsockopt(socket_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0 ||
        ::bind(socket_, generic, length) != 0 || ::getsockname(socket_, generic, &length) != 0) {
      fail("cannot reserve a port of 127.0.0.1");
    }
    port_ = ntohs(address.sin_port);
  }
  ~ReservedPort() { ::close(socket_); }
  ReservedPort(const ReservedPort&) = delete;
  ReservedPort& operator=(const ReservedPort&) = delete;
  int port() const noexcept { return port_; }

 private:
  int socket_;
  int port_ = 0;
};

/// One end of a rank's pipe and the lines that come out of it.
struct Stream {
  int descriptor;
  LinePrefixer lines;
  OutputSink* sink;
};

struct Rank {
  pid_t pid;
  bool running = true;
  bool group_gone = false;
};

class Job {
 public:
  explicit Job(const JobOptions& options) : options_(options) {}
  ~Job() {
    for (const Stream& stream : streams_) ::close(stream.descriptor);
    if (signals_ >= 0) ::close(signals_);
  }
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  int run();

 private:
  enum class Stage { Running, Grace, Terminated, Killed };

  void take_over_signals();
  void start_all();
  void start(int rank, const std::string& job, const std::string& secret);
  void turn(bool groups_left);
  int poll_timeout(bool groups_left) const;
  void read_stream(Stream& stream);
  void end_stream(Stream& stream);
  void on_signal();
  void forward(int signal);
  void reap();
  void on_exit(int rank, int wait_status);
  bool is_first_failure(bool killed) const;
  void advance();
  void enter(Stage stage, Clock::duration until_next);
  void signal_groups(int signal);
  bool any_running() const;
  bool groups_left();
  void drain_streams();
  void write_backlog();
  void say(const std::string& text) { error_.add("tersum-run: " + text + "\n"); }

  const JobOptions& options_;
  ReservedPort port_;
  SharedMemoryFolder shared_memory_;
  OutputSink output_{STDOUT_FILENO};
  OutputSink error_{STDERR_FILENO};
  int signals_ = -1;
  std::vector<Rank> ranks_;
  std::vector<Stream> streams_;
  Stage stage_ = Stage::Running;
  std::optional<Clock::time_point> next_stage_;
  int interrupts_ = 0;
  int exit_code_ = 0;
  bool first_was_killed_ = false;
  Clock::time_point first_failure_{};
  bool direct_ = false;
};

int Job::run() {
  take_over_signals();
  // Orphans of the ranks become our children: so they can be waited for.
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  direct_ = options_.ranks == 1 && ::isatty(STDOUT_FILENO) == 1;
  start_all();
  for (;;) {
    reap();
    const bool left = groups_left();
    if (!any_running()) {
      // What a rank has left behind in its group ends with it.
      if (left && stage_ < Stage::Terminated) enter(Stage::Terminated, kTermToKill);
      if (!left) break;
    }
    advance();
    if (stage_ == Stage::Killed && !any_running() && !next_stage_) break;
    turn(left);
  }
  drain_streams();
  next_stage_.reset();
  write_backlog();
  if (output_.error() != 0 && exit_code_ == 0) {
    exit_code_ = 1;
    say(std::string("cannot write the standard output: ") + std::strerror(output_.error()));
    write_backlog();
  }
  return exit_code_;
}

void Job::write_backlog() {
  while (output_.backlog_bytes() + error_.backlog_bytes() > 0) turn(false);
}

void Job::take_over_signals() {
  sigset_t set;
  ::sigemptyset(&set);
  ::sigaddset(&set, SIGCHLD);
  for (const int signal : kForwarded) ::sigaddset(&set, signal);
  ::sigprocmask(SIG_BLOCK, &set, nullptr);
  ::signal(SIGPIPE, SIG_IGN);
  signals_ = ::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
  if (signals_ < 0) fail("cannot watch signals");
}

void Job::start_all() {
  const std::string job = "tersum-run-" + random_hex(8);
  const std::string secret = random_hex(32);
  for (int rank = 0; rank < options_.ranks; ++rank) {
    try {
      start(rank, job, secret);
    } catch (const std::system_error& error) {
      const int code = error.code().value();
      say(code == ENOENT ? "program not found: " + options_.command.front()
                         : "cannot start rank " + std::to_string(rank) + ": " + error.what());
      exit_code_ = code == ENOENT ? 127 : 126;
      enter(Stage::Killed, kTermToKill);
      return;
    }
  }
}

void Job::start(int rank, const std::string& job, const std::string& secret) {
  ChildOptions child;
  child.command = options_.command;
  child.environment = options_.environment;
  const std::string number = std::to_string(rank), size = std::to_string(options_.ranks);
  const std::string root = "127.0.0.1:" + std::to_string(port_.port());
  const std::array<std::string, kOwnVariables.size()> values = {number, size,   number, size,
                                                                root,   secret, job};
  for (std::size_t i = 0; i < values.size(); ++i) {
    child.environment.emplace_back(kOwnVariables[i], values[i]);
  }
  if (!shared_memory_.path().empty()) child.defaults = {{"UCX_POSIX_DIR", shared_memory_.path()}};
  // Ranks run in the background of a terminal, where reading from it would stop them.
  child.inherit_stdin = rank == 0 && ::isatty(STDIN_FILENO) != 1;
  child.inherit_output = direct_;
  const Child started = start_child(child);
  ranks_.push_back({started.pid});
  if (direct_) return;
  std::string prefix;  // in steps: g++ 12 warns of "[" + a temporary
  if (options_.prefix) prefix.append("[").append(std::to_string(rank)).append("] ");
  streams_.push_back({started.output, LinePrefixer(prefix), &output_});
  streams_.push_back({started.error, LinePrefixer(prefix), &error_});
}

int Job::poll_timeout(bool groups_left) const {
  // Groups end without a signal to us: they are looked at now and then once their leaders are gone.
  if (groups_left && !any_running()) return static_cast<int>(kGroupCheck / 1ms);
  if (!next_stage_) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(*next_stage_ - Clock::now());
  return static_cast<int>(std::max<std::chrono::milliseconds::rep>(left.count(), 0));
}

void Job::turn(bool groups_left) {
  std::vector<pollfd> polled{{signals_, POLLIN, 0}};
  for (OutputSink* sink : {&output_, &error_}) {
    const short events = sink->backlog_bytes() > 0 ? POLLOUT : 0;
    polled.push_back({events ? sink->descriptor() : -1, events, 0});
  }
  for (const Stream& stream : streams_) {
    const bool wanted = stream.sink->backlog_bytes() < kMaxBacklogBytes;
    polled.push_back({wanted ? stream.descriptor : -1, POLLIN, 0});
  }
  if (::poll(polled.data(), polled.size(), poll_timeout(groups_left)) <= 0) return;
  if (polled[0].revents) on_signal();
  if (polled[1].revents) output_.write_some();
  if (polled[2].revents) error_.write_some();
  for (std::size_t i = 0; i < streams_.size(); ++i) {
    if (polled[3 + i].revents) read_stream(streams_[i]);
  }
  std::erase_if(streams_, [](const Stream& stream) { return stream.descriptor < 0; });
}

void Job::read_stream(Stream& stream) {
  std::array<char, kReadBytes> chunk;
  const ssize_t count = ::read(stream.descriptor, chunk.data(), chunk.size());
  if (count > 0) {
    stream.sink->add(stream.lines.add({chunk.data(), static_cast<std::size_t>(count)}));
  } else if (count == 0 || (errno != EAGAIN && errno != EINTR)) {
    end_stream(stream);
  }
}

void Job::end_stream(Stream& stream) {
  stream.sink->add(stream.lines.finish());
  ::close(stream.descriptor);
  stream.descriptor = -1;
}

/// All ranks are gone: takes what is left in their pipes. Somebody who has left the rank's group
/// may keep a pipe open; nobody waits for that.
void Job::drain_streams() {
  for (Stream& stream : streams_) {
    for (int i = 0; i < kReadsToEmptyPipe && stream.descriptor >= 0; ++i) read_stream(stream);
    if (stream.descriptor >= 0) end_stream(stream);
  }
  streams_.clear();
}

void Job::on_signal() {
  signalfd_siginfo info;
  while (::read(signals_, &info, sizeof(info)) == sizeof(info)) {
    if (info.ssi_signo != SIGCHLD) forward(static_cast<int>(info.ssi_signo));
  }
}

void Job::forward(int signal) {
  if (!any_running()) {
    // Only the reader of our output keeps us.
    output_.drop();
    error_.drop();
    return;
  }
  signal_groups(signal);
  if (signal == SIGUSR1 || signal == SIGUSR2) return;
  if (++interrupts_ >= kInterruptsToKill && stage_ < Stage::Killed) {
    say("interrupted again: killing all ranks");
    enter(Stage::Killed, kTermToKill);
  }
}

void Job::reap() {
  std::vector<std::pair<int, int>> exits;  // rank, wait status
  int wait_status = 0;
  pid_t pid;
  while ((pid = ::waitpid(-1, &wait_status, WNOHANG)) > 0) {
    const auto found = std::ranges::find(ranks_, pid, &Rank::pid);
    if (found == ranks_.end() || !found->running) continue;  // an orphan
    found->running = false;
    exits.emplace_back(found - ranks_.begin(), wait_status);
  }
  std::ranges::stable_partition(exits, [](const auto& exit) { return WIFSIGNALED(exit.second); });
  for (const auto& [rank, status] : exits) on_exit(rank, status);
}

void Job::on_exit(int rank, int wait_status) {
  const bool killed = WIFSIGNALED(wait_status);
  const int code = killed ? 128 + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
  if (code == 0 || !is_first_failure(killed)) return;
  exit_code_ = code;
  first_was_killed_ = killed;
  const std::string how = killed ? "was killed by signal " + std::to_string(WTERMSIG(wait_status)) +
                                       " (" + ::strsignal(WTERMSIG(wait_status)) + ")"
                                 : "exited with code " + std::to_string(code);
  const bool ending = any_running() && stage_ == Stage::Running;
  say("rank " + std::to_string(rank) + " " + how +
      (ending ? "; the others are ended in " + std::to_string(options_.grace.count()) + " ms"
              : ""));
  if (stage_ != Stage::Running) return;
  first_failure_ = Clock::now();
  enter(Stage::Grace, options_.grace);
}

/// A dying process closes its connections before it counts as dead, so the ranks that notice may
/// end before it. Of those that end within a moment, one that was killed is the cause.
bool Job::is_first_failure(bool killed) const {
  if (exit_code_ == 0) return true;
  return killed && !first_was_killed_ && stage_ == Stage::Grace &&
         Clock::now() - first_failure_ < kMoment;
}

void Job::advance() {
  if (!next_stage_ || Clock::now() < *next_stage_) return;
  if (stage_ == Stage::Grace) {
    enter(Stage::Terminated, kTermToKill);
  } else if (stage_ == Stage::Terminated) {
    enter(Stage::Killed, kTermToKill);
  } else {
    next_stage_.reset();  // nothing is stronger
  }
}

void Job::enter(Stage stage, Clock::duration until_next) {
  stage_ = stage;
  next_stage_ = Clock::now() + until_next;
  if (stage == Stage::Terminated) signal_groups(SIGTERM);
  if (stage == Stage::Killed) signal_groups(SIGKILL);
}

void Job::signal_groups(int signal) {
  for (const Rank& rank : ranks_) {
    if (!rank.group_gone) ::kill(-rank.pid, signal);
  }
}

bool Job::any_running() const {
  return std::ranges::any_of(ranks_, &Rank::running);
}

bool Job::groups_left() {
  bool left = false;
  for (Rank& rank : ranks_) {
    // Once a group is gone its id may be somebody else's.
    if (!rank.group_gone && !rank.running && ::kill(-rank.pid, 0) != 0 && errno == ESRCH) {
      rank.group_gone = true;
    }
    left |= !rank.group_gone;
  }
  return left;
}

}  // namespace

bool is_set_by_job(std::string_view variable) noexcept {
  return std::ranges::find(kOwnVariables, variable) != kOwnVariables.end();
}

int run_job(const JobOptions& options) {
  return Job(options).run();
}

}  // namespace tersum::tools
