#include "cuda/collective_support.hpp"

#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>

#include "tersum/error.hpp"

extern char** environ;

namespace tersum::gpu {
namespace {

using Clock = std::chrono::steady_clock;
using Blobs = std::vector<std::vector<std::byte>>;

constexpr const char* kVariable = "TERSUM_TEST_RANK";  // "rank size descriptor"

bool read_all(int fd, void* to, std::size_t bytes) {
  auto* at = static_cast<char*>(to);
  while (bytes > 0) {
    const ssize_t done = read(fd, at, bytes);
    if (done <= 0) return false;
    at += done;
    bytes -= static_cast<std::size_t>(done);
  }
  return true;
}

bool write_all(int fd, const void* from, std::size_t bytes) {
  const auto* at = static_cast<const char*>(from);
  while (bytes > 0) {
    const ssize_t done = send(fd, at, bytes, MSG_NOSIGNAL);
    if (done <= 0) return false;
    at += done;
    bytes -= static_cast<std::size_t>(done);
  }
  return true;
}

bool read_blob(int fd, std::vector<std::byte>& blob) {
  std::uint32_t bytes = 0;
  if (!read_all(fd, &bytes, sizeof(bytes))) return false;
  blob.resize(bytes);
  return read_all(fd, blob.data(), bytes);
}

bool write_blob(int fd, std::span<const std::byte> blob) {
  const auto bytes = static_cast<std::uint32_t>(blob.size());
  return write_all(fd, &bytes, sizeof(bytes)) && write_all(fd, blob.data(), blob.size());
}

struct Child {
  pid_t pid = -1;
  int fd = -1;
  bool running = true;
  std::vector<std::byte> blob;
  bool has_blob = false;
};

Child start(const ProcessPlan& plan, int rank) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    throw Error(Code::System, "socketpair failed");
  }
  const int inherited = dup(ends[1]);  // without the close-on-exec flag
  std::vector<std::string> words{"/proc/self/exe"};
  words.insert(words.end(), plan.arguments.begin(), plan.arguments.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  std::string role = std::string(kVariable) + "=" + std::to_string(rank) + " " +
                     std::to_string(plan.size) + " " + std::to_string(inherited);
  std::vector<char*> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) environment.push_back(*entry);
  environment.push_back(role.data());
  environment.push_back(nullptr);
  Child child;
  child.pid = fork();
  if (child.pid == 0) {
    execve("/proc/self/exe", argv.data(), environment.data());
    _exit(127);
  }
  close(ends[1]);
  close(inherited);
  child.fd = ends[0];
  return child;
}

// Passes blobs on once every rank has sent one.
void serve(std::vector<Child>& children, int& gathers) {
  std::vector<pollfd> polls;
  for (const Child& child : children) {
    const bool listens = child.running && !child.has_blob && child.fd >= 0;
    polls.push_back({listens ? child.fd : -1, POLLIN, 0});
  }
  poll(polls.data(), polls.size(), 5);
  for (std::size_t i = 0; i < children.size(); ++i) {
    if ((polls[i].revents & (POLLIN | POLLHUP)) == 0) continue;
    children[i].has_blob = read_blob(children[i].fd, children[i].blob);
    if (!children[i].has_blob) {  // this rank is gone: nobody gets an answer any more
      for (Child& child : children) {
        if (child.fd >= 0) close(child.fd);
        child.fd = -1;
      }
      return;
    }
  }
  if (!std::all_of(children.begin(), children.end(), [](const Child& c) { return c.has_blob; })) {
    return;
  }
  ++gathers;
  for (const Child& to : children) {
    for (const Child& from : children) write_blob(to.fd, from.blob);
  }
  for (Child& child : children) child.has_blob = false;
}

}  // namespace

bool ProcessResults::all_succeeded() const {
  return !timed_out && std::all_of(wait_status.begin(), wait_status.end(),
                                   [](int status) { return status == 0; });
}

std::string ProcessResults::to_string() const {
  std::string text = timed_out ? "timed out;" : "";
  for (const int status : wait_status) {
    text += WIFSIGNALED(status) ? " signal " + std::to_string(WTERMSIG(status))
                                : " exit " + std::to_string(WEXITSTATUS(status));
  }
  return text;
}

bool is_rank_process() {
  return std::getenv(kVariable) != nullptr;
}

RankRole rank_process_role() {
  RankRole role;
  int fd = -1;
  if (std::sscanf(std::getenv(kVariable), "%d %d %d", &role.rank, &role.size, &fd) != 3) {
    throw Error(Code::Internal, "no rank process");
  }
  role.all_gather = [fd, size = role.size](std::span<const std::byte> own) {
    Blobs all(static_cast<std::size_t>(size));
    bool good = write_blob(fd, own);
    for (auto& blob : all) good = good && read_blob(fd, blob);
    if (!good) throw Error(Code::PeerLost, "a rank is gone");
    return all;
  };
  return role;
}

ProcessResults run_processes(const ProcessPlan& plan) {
  std::vector<Child> children;
  for (int rank = 0; rank < plan.size; ++rank) children.push_back(start(plan, rank));
  ProcessResults results;
  results.wait_status.resize(children.size());
  const auto end = Clock::now() + plan.limit;
  int gathers = 0;
  bool to_kill = plan.victim >= 0;
  for (auto running = children.size(); running > 0;) {
    serve(children, gathers);
    if (to_kill && gathers >= plan.gathers_before_kill) {
      std::this_thread::sleep_for(plan.kill_delay);
      kill(children[static_cast<std::size_t>(plan.victim)].pid, plan.kill_signal);
      to_kill = false;
    }
    for (std::size_t i = 0; i < children.size(); ++i) {
      if (!children[i].running ||
          waitpid(children[i].pid, &results.wait_status[i], WNOHANG) != children[i].pid) {
        continue;
      }
      children[i].running = false;
      --running;
    }
    if (running == 1 && plan.victim >= 0) {
      const Child& victim = children[static_cast<std::size_t>(plan.victim)];
      if (victim.running) kill(victim.pid, SIGKILL);
    }
    if (Clock::now() < end || results.timed_out) continue;
    results.timed_out = true;
    for (const Child& child : children) {
      if (child.running) kill(child.pid, SIGKILL);
    }
  }
  for (const Child& child : children) {
    if (child.fd >= 0) close(child.fd);
  }
  return results;
}

void run_threads(int size, const std::function<void(const RankRole&)>& body) {
  struct Meeting {
    std::mutex mutex;
    std::condition_variable changed;
    Blobs arriving, complete;
    std::size_t arrived = 0;
    std::uint64_t round = 0;
  } meeting;
  meeting.arriving.resize(static_cast<std::size_t>(size));
  std::mutex mutex;
  std::exception_ptr failure;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      const AllGatherBlobs gather = [&meeting, rank](std::span<const std::byte> own) {
        std::unique_lock lock(meeting.mutex);
        meeting.arriving[static_cast<std::size_t>(rank)].assign(own.begin(), own.end());
        const std::uint64_t round = meeting.round;
        if (++meeting.arrived == meeting.arriving.size()) {
          meeting.complete = meeting.arriving;
          meeting.arrived = 0;
          ++meeting.round;
          meeting.changed.notify_all();
        } else if (!meeting.changed.wait_for(lock, std::chrono::seconds(60),
                                             [&] { return meeting.round != round; })) {
          throw Error(Code::Timeout, "a rank did not come to the all-gather");
        }
        return meeting.complete;
      };
      try {
        body({rank, size, gather});
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (failure == nullptr) failure = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (failure != nullptr) std::rethrow_exception(failure);
}

}  // namespace tersum::gpu
