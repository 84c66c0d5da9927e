// Real processes that really die: the UCX transport must end everything that waited for them.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <set>

#include "transport/support.hpp"
#include "transport/ucx_transport.hpp"

namespace tersum::transport::testing {
namespace {

constexpr std::size_t kLarge = 64 << 20;

void write_all(int descriptor, const void* data, std::size_t bytes) {
  const auto* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t n = write(descriptor, at, bytes);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) throw Error(Code::System, "the pipe broke");
    at += n;
    bytes -= static_cast<std::size_t>(n);
  }
}

void read_all(int descriptor, void* data, std::size_t bytes) {
  auto* at = static_cast<char*>(data);
  while (bytes > 0) {
    const ssize_t n = read(descriptor, at, bytes);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) throw Error(Code::System, "the other process is gone");
    at += n;
    bytes -= static_cast<std::size_t>(n);
  }
}

void write_address(int descriptor, const std::vector<std::byte>& address) {
  const std::size_t bytes = address.size();
  write_all(descriptor, &bytes, sizeof(bytes));
  write_all(descriptor, address.data(), bytes);
}

std::vector<std::byte> read_address(int descriptor) {
  std::size_t bytes = 0;
  read_all(descriptor, &bytes, sizeof(bytes));
  std::vector<std::byte> address(bytes);
  read_all(descriptor, address.data(), bytes);
  return address;
}

/// Rank 1, in a process of its own: does what its role says and then waits to be killed.
int run_child(const std::string& role, const std::string& transports, int in, int out) {
  auto transport = make_ucx_transport({.transports = transports, .interface = {}});
  TestListener listener;
  write_address(out, transport->address());
  const auto address = read_address(in);
  transport->connect(1, {address, transport->address()}, listener);
  std::vector<std::byte> memory(kLarge);
  TestRequest hello, large;
  transport->post_send(0, envelope(1), {}, hello);
  if (role == "sender") transport->post_send(0, envelope(2), view(memory), large);
  if (role == "receiver") transport->post_receive(0, envelope(3).key, room(memory), large);
  if (role == "leaver") {
    while (!hello.done()) transport->progress();
    transport->close(std::chrono::seconds(5));
    write_all(out, "x", 1);
    return 0;
  }
  while (getppid() > 1) {
    if (role == "frozen" && hello.done()) pause();
    if (!transport->progress()) usleep(100);  // leave the core to the parent
  }
  return 1;
}

class Child {
 public:
  Child(const std::string& role, const std::string& transports) {
    int to_child[2], from_child[2];
    if (pipe(to_child) != 0 || pipe(from_child) != 0) throw Error(Code::System, "pipe");
    const std::string in = std::to_string(to_child[0]), out = std::to_string(from_child[1]);
    process_ = fork();
    if (process_ == 0) {
      close(to_child[1]);
      close(from_child[0]);
      execl("/proc/self/exe", "peer_death_child", role.c_str(), transports.c_str(), in.c_str(),
            out.c_str(), static_cast<char*>(nullptr));
      _exit(127);
    }
    close(to_child[0]);
    close(from_child[1]);
    in_ = to_child[1];
    out_ = from_child[0];
  }
  ~Child() {
    kill();
    close(in_);
    close(out_);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  void kill() {
    if (process_ <= 0) return;
    ::kill(process_, SIGKILL);
    waitpid(process_, nullptr, 0);
    process_ = -1;
  }
  int in() const { return in_; }
  int out() const { return out_; }

 private:
  pid_t process_ = -1;
  int in_ = -1;
  int out_ = -1;
};

/// What UCX might leave behind on this machine.
std::set<std::string> traces() {
  std::set<std::string> found;
  for (const char* folder : {"/dev/shm", "/tmp"}) {
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      const std::string name = entry.path().filename();
      if (name.find("ucx") != std::string::npos) found.insert(entry.path());
    }
  }
  return found;
}

/// Rank 0, in this process, with a rank 1 to be killed.
class PeerDeath : public ::testing::TestWithParam<std::string> {
 protected:
  void start(const std::string& role) {
    before_ = traces();
    child_ = std::make_unique<Child>(role, GetParam());
    transport_ = make_ucx_transport({.transports = GetParam(), .interface = {}});
    const auto address = read_address(child_->out());
    write_address(child_->in(), transport_->address());
    transport_->connect(0, {transport_->address(), address}, listener_);
  }

  void say_hello() {
    transport_->post_receive(1, envelope(1).key, {}, hello_);
    ASSERT_TRUE(pump([&] { return hello_.done(); }));
    ASSERT_TRUE(hello_.status.is_ok()) << hello_.status.to_string();
  }

  ::testing::AssertionResult pump(const std::function<bool()>& done) {
    const auto hang = std::chrono::steady_clock::now() + kHang;
    while (!done()) {
      transport_->progress();
      if (std::chrono::steady_clock::now() > hang) {
        return ::testing::AssertionFailure() << "it does not end";
      }
    }
    return ::testing::AssertionSuccess();
  }

  void expect_lost(const TestRequest& request) {
    EXPECT_EQ(request.calls, 1);
    EXPECT_EQ(request.status.code(), Code::PeerLost) << request.status.to_string();
    EXPECT_EQ(request.status.rank(), 1);
  }

  void expect_clean_end() {
    ASSERT_EQ(listener_.failures.size(), 1u);
    EXPECT_EQ(listener_.failures[0].first, 1);
    EXPECT_EQ(listener_.failures[0].second.rank(), 1);
    transport_->close(std::chrono::seconds(1));
    transport_.reset();
    child_.reset();
    EXPECT_EQ(traces(), before_) << "UCX left files behind";
  }

  std::set<std::string> before_;
  TestListener listener_;
  TestRequest hello_;
  std::unique_ptr<Child> child_;
  std::unique_ptr<Transport> transport_;
};
INSTANTIATE_TEST_SUITE_P(Ucx, PeerDeath, ::testing::Values("tcp", "shm", "auto"),
                         [](const auto& param) { return param.param; });

TEST_P(PeerDeath, EndsPendingSendsAndReceives) {
  start("idle");
  say_hello();
  const std::vector<std::byte> large(kLarge), small(100);
  std::vector<std::byte> into(100);
  std::vector<TestRequest> sends(3), receives(2);
  transport_->post_send(1, envelope(5), view(large), sends[0]);  // never received
  transport_->post_send(1, envelope(6), view(large), sends[1]);
  transport_->post_receive(1, envelope(5).key, room(into), receives[0]);
  for (int i = 0; i < 1000; ++i) transport_->progress();
  child_->kill();
  ASSERT_TRUE(pump([&] { return sends[0].done() && sends[1].done() && receives[0].done(); }));
  expect_lost(sends[0]);
  expect_lost(sends[1]);
  expect_lost(receives[0]);
  transport_->post_send(1, envelope(6), view(small), sends[2]);
  transport_->post_receive(1, envelope(6).key, room(into), receives[1]);
  ASSERT_TRUE(pump([&] { return sends[2].done() && receives[1].done(); }));
  expect_lost(sends[2]);
  expect_lost(receives[1]);
  expect_clean_end();
}

TEST_P(PeerDeath, EndsAReceiveOfARankThatNeverSends) {
  start("idle");
  say_hello();
  std::vector<std::byte> into(100);
  TestRequest receive;
  transport_->post_receive(1, envelope(5).key, room(into), receive);
  for (int i = 0; i < 1000; ++i) transport_->progress();
  child_->kill();
  ASSERT_TRUE(pump([&] { return receive.done(); }));
  expect_lost(receive);
  expect_clean_end();
}

TEST_P(PeerDeath, EndsAReceiveInTransfer) {
  start("sender");
  say_hello();
  ASSERT_TRUE(pump([&] { return listener_.arrivals.size() == 2; }));
  std::vector<std::byte> into(kLarge);
  TestRequest receive;
  transport_->post_receive(1, envelope(2).key, room(into), receive);
  for (int i = 0; i < 3; ++i) transport_->progress();
  child_->kill();
  TestRequest other;
  transport_->post_receive(1, envelope(9).key, room(into), other);
  ASSERT_TRUE(pump([&] { return receive.done() && other.done(); }));
  EXPECT_EQ(receive.calls, 1);
  if (!receive.status.is_ok()) expect_lost(receive);  // it may have been faster
  expect_lost(other);
  expect_clean_end();
}

TEST_P(PeerDeath, EndsASendInTransfer) {
  start("receiver");
  say_hello();
  const std::vector<std::byte> large(kLarge);
  std::vector<TestRequest> sends(4);
  for (TestRequest& send : sends) transport_->post_send(1, envelope(3), view(large), send);
  for (int i = 0; i < 20; ++i) transport_->progress();
  child_->kill();
  ASSERT_TRUE(pump([&] {
    return std::all_of(sends.begin(), sends.end(), [](const auto& s) { return s.done(); });
  }));
  for (std::size_t i = 1; i < sends.size(); ++i) expect_lost(sends[i]);
  expect_clean_end();
}

TEST_P(PeerDeath, ReleasesTheKeptMessagesOfTheDead) {
  start("sender");
  ASSERT_TRUE(pump([&] { return listener_.arrivals.size() == 2; }));
  child_->kill();
  ASSERT_TRUE(pump([&] { return !listener_.failures.empty(); }));
  std::vector<std::byte> into(kLarge);
  TestRequest receive;
  transport_->post_receive(1, envelope(2).key, room(into), receive);
  ASSERT_TRUE(pump([&] { return receive.done(); }));
  expect_lost(receive);
  expect_clean_end();
}

TEST_P(PeerDeath, EndsSendsToAPeerThatDiedBeforeTheFirst) {
  start("frozen");
  child_->kill();
  const std::vector<std::byte> large(kLarge);
  std::vector<std::byte> into(10);
  TestRequest send, receive;
  transport_->post_send(1, envelope(1), view(large), send);
  transport_->post_receive(1, envelope(7).key, room(into), receive);
  ASSERT_TRUE(pump([&] { return send.done() && receive.done(); }));
  expect_lost(send);
  expect_lost(receive);
  expect_clean_end();
}

TEST_P(PeerDeath, CloseReturnsWhileThePeerIsFrozen) {
  start("frozen");
  say_hello();
  const std::vector<std::byte> large(kLarge), small(10);
  std::vector<TestRequest> sends(200);
  for (std::size_t i = 0; i < sends.size(); ++i) {
    transport_->post_send(1, envelope(5), view(i % 2 == 0 ? large : small), sends[i]);
  }
  transport_->close(std::chrono::milliseconds(50));
  for (const TestRequest& send : sends) {
    ASSERT_EQ(send.calls, 1);
    EXPECT_TRUE(send.status.is_ok() || send.status.code() == Code::Aborted);
  }
  EXPECT_EQ(sends[0].status.code(), Code::Aborted);
}

TEST_P(PeerDeath, CloseReturnsWhenThePeerIsDead) {
  start("idle");
  say_hello();
  const std::vector<std::byte> large(kLarge);
  std::vector<std::byte> into(10);
  TestRequest send, receive;
  transport_->post_send(1, envelope(5), view(large), send);
  transport_->post_receive(1, envelope(5).key, room(into), receive);
  child_->kill();
  transport_->close(std::chrono::seconds(2));
  EXPECT_EQ(send.calls, 1);
  EXPECT_EQ(receive.calls, 1);
  EXPECT_EQ(receive.status.code(), Code::Aborted);
  transport_.reset();
  child_.reset();
  EXPECT_EQ(traces(), before_);
}

TEST_P(PeerDeath, AProcessThatLeavesInGoodOrderIsNoFailure) {
  start("leaver");
  std::vector<std::byte> into(10);
  TestRequest receive;
  say_hello();
  transport_->post_receive(1, envelope(5).key, room(into), receive);
  ASSERT_TRUE(pump([&] { return receive.done(); }));
  expect_lost(receive);
  EXPECT_NE(receive.status.message().find("left"), std::string::npos);
  char closed = 0;
  read_all(child_->out(), &closed, 1);
  for (int i = 0; i < 10'000; ++i) transport_->progress();
  EXPECT_TRUE(listener_.failures.empty());
  transport_->close(std::chrono::seconds(1));
}

}  // namespace

int child_main(char** arguments) {
  try {
    return run_child(arguments[1], arguments[2], std::atoi(arguments[3]), std::atoi(arguments[4]));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "child: %s\n", error.what());
    return 2;
  }
}

}  // namespace tersum::transport::testing

int main(int count, char** arguments) {
  if (count == 5 && std::strcmp(arguments[0], "peer_death_child") == 0) {
    return tersum::transport::testing::child_main(arguments);
  }
  ::testing::InitGoogleTest(&count, arguments);
  return RUN_ALL_TESTS();
}
