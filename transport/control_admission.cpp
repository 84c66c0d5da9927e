#include "transport/control_admission.hpp"

#include <algorithm>
#include <list>
#include <optional>
#include <utility>

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>

#include "transport/control_text.hpp"
#include "transport/network_interfaces.hpp"

namespace tersum::transport::control {
namespace {

using boost::asio::ip::tcp;
using boost::system::error_code;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr auto kStrangerTimeout = 2s;
constexpr std::size_t kStrangersBeyondSize = 256;
constexpr auto kSweepInterval = 50ms;
constexpr auto kAcceptPause = 10ms;   // when the process is out of descriptors
constexpr auto kTellLatecomers = 2s;  // how long a failed join waits to tell those not yet in
constexpr auto kFlush = 1s;
constexpr auto kDrain = 200ms;

class Admission : public std::enable_shared_from_this<Admission> {
 public:
  Admission(boost::asio::io_context& context, const JoinRequest& request)
      : context_(context),
        request_(request),
        key_(join_key(request.secret, request.job)),
        started_(Clock::now()),
        deadline_(started_ + request.join_timeout),
        acceptor_(context),
        accept_pause_(context),
        sweep_timer_(context),
        links_(static_cast<std::size_t>(request.size)),
        members_(links_.size()) {
    members_[0] = {request.host_id, request.address};
  }

  Admitted run();

 private:
  /// A connection that has not proved anything yet, or is being turned away.
  struct Stranger {
    std::shared_ptr<Link> link;
    Nonce nonce;
    Clock::time_point since = Clock::now();
    int rank = -1;  // once admitted
  };
  using StrangerPtr = std::shared_ptr<Stranger>;

  void listen();
  bool try_listen(const tcp::endpoint& endpoint, error_code& error);
  std::vector<tcp::endpoint> listen_candidates() const;
  void accept();
  void on_accept(tcp::socket socket);
  void on_frame(const StrangerPtr& stranger, FrameType type, ByteView body);
  void on_hello(const StrangerPtr& stranger, ByteView body);
  void on_end(const StrangerPtr& stranger, const Status& why);
  void admit(const StrangerPtr& stranger, Hello hello);
  void refuse(const StrangerPtr& stranger, Refusal refusal);
  void turn_away(const StrangerPtr& stranger, const Status& verdict);
  void forget(const StrangerPtr& stranger);
  void complete();
  void fail(const Status& cause);
  void sweep();
  void expire();
  int missing_count() const;
  Status timeout() const;
  void hand_out_table();

  boost::asio::io_context& context_;
  const JoinRequest& request_;
  Bytes key_;
  Clock::time_point started_;
  Clock::time_point deadline_;  // the earliest of all ranks'
  tcp::acceptor acceptor_;
  boost::asio::steady_timer accept_pause_;
  boost::asio::steady_timer sweep_timer_;
  std::list<StrangerPtr> strangers_;  // oldest first
  std::vector<std::shared_ptr<Link>> links_;
  std::vector<Member> members_;
  std::string accept_error_;
  std::optional<Status> failure_;
  Clock::time_point told_until_{};
  std::vector<bool> told_ = std::vector<bool>(links_.size());
  bool finished_ = false;
};

Admitted Admission::run() {
  listen();
  accept();
  sweep();
  while (!finished_) {
    if (context_.stopped()) context_.restart();
    context_.run_one();
  }
  error_code ignored;
  acceptor_.close(ignored);
  accept_pause_.cancel();
  sweep_timer_.cancel();
  for (const auto& stranger : strangers_) {
    if (stranger->rank < 0 && !failure_) stranger->link->close();
  }
  if (failure_) {
    std::vector<std::shared_ptr<Link>> links;
    for (const auto& stranger : strangers_) links.push_back(stranger->link);
    Link::finish(links, kFlush, kDrain);
    throw Error(*failure_);
  }
  hand_out_table();
  return {std::move(links_), std::move(members_)};
}

std::vector<tcp::endpoint> Admission::listen_candidates() const {
  auto candidates = resolve(request_.root_host, request_.root_port);
  if (request_.interface.empty()) return candidates;
  const auto own = interface_addresses(request_.interface);
  // The interface decides among the host's addresses. A loopback address means a job on one host,
  // whatever carries its data. If the host's name stands for something in front of this machine,
  // only the interface tells where to listen.
  std::vector<tcp::endpoint> chosen;
  for (const auto& candidate : candidates) {
    const auto address = candidate.address();
    const bool on_interface = std::ranges::find(own, address) != own.end();
    if (on_interface || address.is_loopback()) chosen.push_back(candidate);
  }
  if (chosen.empty()) {
    for (const auto& address : own) chosen.emplace_back(address, request_.root_port);
  }
  return chosen;
}

void Admission::listen() {
  error_code error;
  for (const auto& endpoint : listen_candidates()) {
    if (try_listen(endpoint, error)) return;
    if (error == boost::asio::error::address_in_use) {
      throw Error(Code::System, "port " + std::to_string(request_.root_port) + " on " +
                                    request_.root_host +
                                    " is taken by another program: choose another one with "
                                    "TERSUM_ROOT (" +
                                    error.message() + ")");
    }
  }
  throw Error(Code::System,
              "rank 0 cannot listen at " + endpoint_text(request_.root_host, request_.root_port) +
                  ": " + error.message() +
                  " (does TERSUM_ROOT name the host of rank 0? is TERSUM_INTERFACE right?)");
}

bool Admission::try_listen(const tcp::endpoint& endpoint, error_code& error) {
  error_code ignored;
  acceptor_.close(ignored);
  acceptor_.open(endpoint.protocol(), error);
  if (!error) acceptor_.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor_.bind(endpoint, error);
  if (!error) acceptor_.listen(tcp::acceptor::max_listen_connections, error);
  return !error;
}

void Admission::accept() {
  acceptor_.async_accept([weak = weak_from_this()](const error_code& error, tcp::socket socket) {
    const auto self = weak.lock();
    if (!self || self->finished_ || error == boost::asio::error::operation_aborted) return;
    if (!error) {
      self->on_accept(std::move(socket));
      self->accept();
      return;
    }
    // Out of descriptors, most likely: the oldest stranger makes room.
    self->accept_error_ = error.message();
    if (!self->strangers_.empty() && self->strangers_.front()->rank < 0) {
      self->forget(self->strangers_.front());
    }
    self->accept_pause_.expires_after(kAcceptPause);
    self->accept_pause_.async_wait([weak](const error_code&) {
      const auto waiting = weak.lock();
      if (waiting && !waiting->finished_) waiting->accept();
    });
  });
}

void Admission::on_accept(tcp::socket socket) {
  if (strangers_.size() >= links_.size() + kStrangersBeyondSize) {
    // A rank answers within a round trip, so whoever has been silent longest is none.
    const auto oldest =
        std::ranges::find_if(strangers_, [](const auto& stranger) { return stranger->rank < 0; });
    if (oldest != strangers_.end()) forget(*oldest);
  }
  auto stranger = std::make_shared<Stranger>();
  stranger->link = std::make_shared<Link>(std::move(socket), kHelloCap);
  stranger->nonce = random_nonce();
  strangers_.push_back(stranger);
  stranger->link->read(
      [weak = weak_from_this(), of = std::weak_ptr(stranger)](FrameType type, ByteView body) {
        const auto self = weak.lock();
        const auto from = of.lock();
        if (self && from) self->on_frame(from, type, body);
      },
      [weak = weak_from_this(), of = std::weak_ptr(stranger)](const Status& why) {
        const auto self = weak.lock();
        const auto from = of.lock();
        if (self && from) self->on_end(from, why);
      });
  Greeting greeting;
  greeting.nonce = stranger->nonce;
  stranger->link->send(FrameType::Greeting, encode(greeting));
}

void Admission::on_frame(const StrangerPtr& stranger, FrameType type, ByteView body) {
  if (stranger->rank >= 0 || type != FrameType::Hello) {
    throw Error(Code::Protocol, "an unexpected control message before the join was complete");
  }
  on_hello(stranger, body);
}

void Admission::on_hello(const StrangerPtr& stranger, ByteView body) {
  const Accepted accepted{std::chrono::nanoseconds(Clock::now().time_since_epoch()).count()};
  Hello hello;
  try {
    hello = decode_hello(body);
  } catch (const Error&) {
    return refuse(stranger, Refusal::Malformed);
  }
  if (hello.version != kProtocolVersion) return refuse(stranger, Refusal::Version);
  if (hello.job != request_.job) return refuse(stranger, Refusal::Job);
  if (!is_authentic(body, key_, stranger->nonce)) return refuse(stranger, Refusal::Secret);

  stranger->link->seal(session_key(key_, stranger->nonce, hello.nonce), true);
  if (hello.size != request_.size) {  // then nobody can be right
    fail({Code::Mismatch,
          "TERSUM_SIZE differs: rank 0 has " + std::to_string(request_.size) + ", rank " +
              std::to_string(hello.rank) + " has " + std::to_string(hello.size),
          {},
          hello.rank});
    if (hello.rank > 0 && hello.rank < request_.size)
      told_[static_cast<std::size_t>(hello.rank)] = true;
    return turn_away(stranger, *failure_);
  }
  if (hello.rank < 1 || hello.rank >= request_.size) {
    return turn_away(
        stranger,
        {Code::Protocol, "rank " + std::to_string(hello.rank) + " is out of range (1 to " +
                             std::to_string(request_.size - 1) + " may join): check TERSUM_RANK"});
  }
  if (links_[static_cast<std::size_t>(hello.rank)]) {
    return turn_away(stranger, {Code::Protocol, "rank " + std::to_string(hello.rank) +
                                                    " has joined already: two processes have the "
                                                    "same rank, check TERSUM_RANK"});
  }
  const std::string difference = settings_difference(request_.settings, hello.settings, hello.rank);
  if (!difference.empty()) fail({Code::Mismatch, difference, {}, hello.rank});
  if (failure_) {
    told_[static_cast<std::size_t>(hello.rank)] = true;
    turn_away(stranger, *failure_);
    return;
  }
  stranger->link->send(FrameType::Accepted, encode(accepted));
  admit(stranger, std::move(hello));
}

void Admission::admit(const StrangerPtr& stranger, Hello hello) {
  const auto rank = static_cast<std::size_t>(hello.rank);
  stranger->rank = hello.rank;
  links_[rank] = stranger->link;
  members_[rank] = std::move(hello.member);
  deadline_ = std::min(deadline_, Clock::now() + hello.patience);
  if (missing_count() == 0) complete();
}

void Admission::refuse(const StrangerPtr& stranger, Refusal refusal) {
  stranger->link->send(FrameType::Refused, encode(refusal));
  stranger->link->close_after_flush();
}

void Admission::turn_away(const StrangerPtr& stranger, const Status& verdict) {
  stranger->link->send(FrameType::Verdict, encode(verdict));
  stranger->link->close_after_flush();
}

void Admission::on_end(const StrangerPtr& stranger, const Status& why) {
  if (stranger->rank >= 0 && !failure_) {
    fail({why.code(),
          "rank " + std::to_string(stranger->rank) + " died (" + why.message() +
              ") while the job was joining",
          {},
          stranger->rank});
  }
  forget(stranger);
}

void Admission::forget(const StrangerPtr& stranger) {
  const StrangerPtr keep = stranger;  // may be the list's own
  keep->link->close();
  strangers_.remove(keep);
}

void Admission::complete() {
  finished_ = true;
  for (const auto& link : links_) {
    if (link) link->pause();
  }
}

void Admission::fail(const Status& cause) {
  if (failure_ || finished_) return;
  failure_ = cause;
  told_until_ = Clock::now() + (cause.code() == Code::Timeout ? 0s : kTellLatecomers);
  for (const auto& stranger : strangers_) {
    if (stranger->rank < 0) continue;
    told_[static_cast<std::size_t>(stranger->rank)] = true;
    turn_away(stranger, cause);
  }
}

void Admission::sweep() {
  expire();
  if (finished_) return;
  sweep_timer_.expires_after(kSweepInterval);
  sweep_timer_.async_wait([weak = weak_from_this()](const error_code&) {
    const auto self = weak.lock();
    if (self && !self->finished_) self->sweep();
  });
}

void Admission::expire() {
  const auto now = Clock::now();
  for (auto it = strangers_.begin(); it != strangers_.end();) {
    const StrangerPtr stranger = *it++;
    if (stranger->rank < 0 && now - stranger->since > kStrangerTimeout) forget(stranger);
  }
  if (!failure_ && now >= deadline_) fail(timeout());
  const bool all_told = std::ranges::count(told_, true) == std::ssize(told_) - 1;
  if (failure_ && (all_told || now >= told_until_)) finished_ = true;
}

int Admission::missing_count() const {
  return static_cast<int>(std::ranges::count(links_, nullptr)) - 1;  // rank 0 has no link
}

Status Admission::timeout() const {
  std::vector<int> missing;
  for (int rank = 1; rank < request_.size; ++rank) {
    if (!links_[static_cast<std::size_t>(rank)]) missing.push_back(rank);
  }
  auto waited = std::chrono::round<std::chrono::milliseconds>(deadline_ - started_);
  if (waited > 2s) waited = std::chrono::round<std::chrono::seconds>(waited);
  std::string message = name_ranks(missing, request_.size) +
                        (missing.size() == 1 ? " has" : " have") + " not joined within " +
                        duration_text(waited) + " at " +
                        endpoint_text(request_.root_host, request_.root_port);
  if (!accept_error_.empty()) message += " (accepting connections failed: " + accept_error_ + ")";
  return {Code::Timeout, message, {}, missing.size() == 1 ? missing.front() : -1};
}

void Admission::hand_out_table() {
  const auto table = std::make_shared<const Bytes>(encode(members_));
  for (const auto& link : links_) {
    if (link) link->send(FrameType::Table, table);
  }
  // A rank that does not take its table in time is left to the heartbeats.
  const auto flushed = [&] {
    return std::ranges::all_of(links_, [](const auto& link) { return !link || link->flushed(); });
  };
  while (!flushed() && Clock::now() < deadline_) {
    if (context_.stopped()) context_.restart();
    context_.run_one_for(10ms);
  }
}

}  // namespace

Admitted admit_all(boost::asio::io_context& context, const JoinRequest& request) {
  return std::make_shared<Admission>(context, request)->run();
}

}  // namespace tersum::transport::control
