// Ranks for tests of the control plane: as threads of this process, and by hand, frame by frame.
#pragma once

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <boost/asio/buffer.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>

#include "transport/control.hpp"
#include "transport/control_frames.hpp"

namespace tersum::transport::testing {

using boost::asio::ip::tcp;
using namespace std::chrono_literals;

/// How long a test waits for what must happen. Never reached by code that works.
inline constexpr std::chrono::seconds kPatience{60};

/// A port of 127.0.0.1 that nobody else gets while this lives, but on which a rank 0 can listen.
class FreePort {
 public:
  FreePort() : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    const int on = 1;
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof(address);
    auto* generic = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(::setsockopt(socket_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)), 0);
    EXPECT_EQ(::bind(socket_, generic, length), 0);
    EXPECT_EQ(::getsockname(socket_, generic, &length), 0);
    port_ = ntohs(address.sin_port);
  }
  ~FreePort() { ::close(socket_); }
  FreePort(const FreePort&) = delete;
  FreePort& operator=(const FreePort&) = delete;
  std::uint16_t port() const noexcept { return port_; }

 private:
  int socket_;
  std::uint16_t port_ = 0;
};

inline std::vector<std::byte> bytes_of(const std::string& text) {
  const auto view = control::as_bytes(text);
  return {view.begin(), view.end()};
}

/// A well-formed request of `rank` in a job of `size`.
inline JoinRequest request_of(int rank, int size, std::uint16_t port) {
  JoinRequest request;
  request.rank = rank;
  request.size = size;
  request.root_host = "127.0.0.1";
  request.root_port = port;
  request.job = "test";
  request.secret = "a secret of the test";
  request.settings = "TERSUM_COMPRESSOR=none\nTERSUM_SEED=0\n";
  request.host_id = "host " + std::to_string(rank / 2);
  request.address = bytes_of("address of rank " + std::to_string(rank));
  request.join_timeout = kPatience;
  request.heartbeat_timeout = kPatience;  // tests about silence set their own
  return request;
}

struct News : ControlListener {
  std::vector<Status> failures;
  std::vector<int> left;
  std::function<void()> on_failure_hook;

  void on_failure(const Status& cause) override {
    failures.push_back(cause);
    if (on_failure_hook) on_failure_hook();
  }
  void on_leave(int rank) override { left.push_back(rank); }
};

/// One rank: use it from one thread.
struct TestRank {
  JoinRequest request;
  News news;
  boost::asio::io_context context;
  std::unique_ptr<ControlPlane> plane;
  std::optional<Status> join_error;
  std::optional<std::vector<std::vector<std::byte>>> blobs;

  explicit TestRank(JoinRequest what) : request(std::move(what)) {}

  bool join() {
    try {
      plane = ControlPlane::join(context, request);
    } catch (const Error& error) {
      join_error = error.status();
    }
    return plane != nullptr;
  }
  bool join_and_start() {
    if (!join()) return false;
    plane->start(news);
    return true;
  }
  /// Runs the rank until `condition` holds; false if it never does.
  bool run_until(const std::function<bool()>& condition) {
    const auto until = std::chrono::steady_clock::now() + kPatience;
    while (!condition()) {
      if (std::chrono::steady_clock::now() > until) return false;
      if (context.stopped()) context.restart();
      context.run_one_for(10ms);
    }
    return true;
  }
  bool run_until_failure() {
    return run_until([this] { return !news.failures.empty(); });
  }
  /// Says good-bye and runs until that is over.
  bool leave(std::vector<std::byte> blob = {}) {
    plane->leave(std::move(blob), [this](auto all) { blobs = std::move(all); });
    return run_until([this] { return blobs.has_value(); });
  }
};

/// Runs `script` for each of `ranks`, each in its own thread, and waits for them.
inline void run_ranks(std::vector<std::unique_ptr<TestRank>>& ranks,
                      const std::function<void(TestRank&)>& script) {
  std::vector<std::thread> threads;
  for (auto& rank : ranks) threads.emplace_back([&script, &rank] { script(*rank); });
  for (std::thread& thread : threads) thread.join();
}

inline std::vector<std::unique_ptr<TestRank>> make_ranks(int size, std::uint16_t port) {
  std::vector<std::unique_ptr<TestRank>> ranks;
  for (int rank = 0; rank < size; ++rank) {
    ranks.push_back(std::make_unique<TestRank>(request_of(rank, size, port)));
  }
  return ranks;
}

/// A connection on which a test speaks the protocol, or nonsense, by hand. Blocking.
class RawPeer {
 public:
  using FrameType = control::FrameType;
  struct Frame {
    FrameType type;
    control::Bytes body;  ///< without the tag
  };

  RawPeer() : socket_(context_) {}

  /// Connects to rank 0 of a test, which may not listen yet.
  void connect(std::uint16_t port) {
    const tcp::endpoint endpoint(boost::asio::ip::address_v4::loopback(), port);
    const auto until = std::chrono::steady_clock::now() + kPatience;
    boost::system::error_code error;
    do {
      socket_.close(error);
      socket_.connect(endpoint, error);
    } while (error && std::chrono::steady_clock::now() < until);
    ASSERT_FALSE(error) << error.message();
  }
  void accept_from(tcp::acceptor& acceptor) { acceptor.accept(socket_); }
  static tcp::acceptor listen(boost::asio::io_context& context, std::uint16_t port) {
    return {context, tcp::endpoint(boost::asio::ip::address_v4::loopback(), port), true};
  }

  void send_raw(const std::string& text) {
    boost::system::error_code error;
    boost::asio::write(socket_, boost::asio::buffer(text), error);
  }
  void send(FrameType type, control::ByteView body = {}) {
    control::Bytes frame;
    control::Bytes rest{static_cast<std::byte>(type)};
    rest.insert(rest.end(), body.begin(), body.end());
    if (control::is_sealed(type)) {
      const auto tag = seal_out_->next(type, body);
      rest.insert(rest.end(), tag.begin(), tag.end());
    }
    for (int i = 0; i < 4; ++i) {
      frame.push_back(static_cast<std::byte>((rest.size() >> (8 * i)) & 0xff));
    }
    frame.insert(frame.end(), rest.begin(), rest.end());
    boost::system::error_code error;
    boost::asio::write(socket_, boost::asio::buffer(frame), error);
  }
  /// The next frame, or nothing when the peer has closed.
  std::optional<Frame> receive() {
    for (;;) {
      if (const auto frame = splitter_.next()) {
        auto rest = frame->rest;
        if (control::is_sealed(frame->type)) rest = rest.first(rest.size() - control::kTagBytes);
        return Frame{frame->type, {rest.begin(), rest.end()}};
      }
      std::array<std::byte, 4096> chunk;
      boost::system::error_code error;
      const std::size_t count = socket_.read_some(boost::asio::buffer(chunk), error);
      if (error) return std::nullopt;
      splitter_.append(control::ByteView(chunk).first(count));
    }
  }
  bool closed_by_peer() {
    while (receive()) {
    }
    return true;
  }

  void seal(const control::Digest& key, bool server) {
    using Direction = control::Seal::Direction;
    seal_out_.emplace(key, server ? Direction::FromServer : Direction::FromClient);
  }

  /// Says hello as `request` would; true if accepted.
  bool hello(const JoinRequest& request) {
    const auto greeting = receive();
    if (!greeting) return false;
    nonce_ = control::decode_greeting(greeting->body).nonce;
    control::Hello hello;
    hello.job = request.job;
    hello.rank = request.rank;
    hello.size = request.size;
    hello.patience = request.join_timeout;
    hello.settings = request.settings;
    hello.member = {request.host_id, request.address};
    const auto key = control::join_key(request.secret, request.job);
    hello_body_ = control::encode(hello, key, nonce_);
    send(FrameType::Hello, hello_body_);
    seal(control::session_key(key, nonce_, hello.nonce), false);
    answer_ = receive();
    return answer_ && answer_->type == FrameType::Accepted;
  }
  bool join(const JoinRequest& request) {
    if (!hello(request)) return false;
    const auto table = receive();
    return table && table->type == FrameType::Table;
  }
  const std::optional<Frame>& answer() const noexcept { return answer_; }
  const control::Bytes& hello_body() const noexcept { return hello_body_; }
  void close() {
    boost::system::error_code error;
    socket_.close(error);
  }

 private:
  boost::asio::io_context context_;
  tcp::socket socket_;
  control::FrameSplitter splitter_{1u << 20};
  std::optional<control::Seal> seal_out_;
  control::Nonce nonce_{};
  control::Bytes hello_body_;
  std::optional<Frame> answer_;
};

}  // namespace tersum::transport::testing
