#include "transport/control_enrolment.hpp"

#include <algorithm>
#include <optional>
#include <random>
#include <utility>

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/socket_base.hpp>
#include <boost/asio/steady_timer.hpp>

#include "transport/control_text.hpp"
#include "transport/network_interfaces.hpp"

namespace tersum::transport::control {
namespace {

using boost::asio::ip::tcp;
using boost::system::error_code;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kFirstPause{5};
constexpr std::chrono::milliseconds kLongestPause{500};
constexpr auto kAttemptTimeout = 5s;  // from connecting to being accepted
constexpr auto kVerdictGrace = 2s;    // after the deadline, for rank 0 to tell who is missing
constexpr auto kFlush = 500ms;
constexpr auto kDrain = 100ms;

class Enrolment : public std::enable_shared_from_this<Enrolment> {
 public:
  Enrolment(boost::asio::io_context& context, const JoinRequest& request)
      : context_(context),
        request_(request),
        key_(join_key(request.secret, request.job)),
        deadline_(Clock::now() + request.join_timeout),
        socket_(context),
        attempt_timer_(context),
        deadline_timer_(context) {}

  Enrolled run();

 private:
  enum class Step { Connecting, AwaitGreeting, AwaitAcceptance, AwaitTable };

  std::string root() const { return endpoint_text(request_.root_host, request_.root_port); }
  void watch_deadline(Clock::time_point until);
  void on_deadline();
  void attempt();
  void connect_next();
  error_code open_socket(const tcp::endpoint& endpoint);
  void on_connect(const error_code& error);
  void on_frame(FrameType type, ByteView body);
  void on_greeting(const Greeting& greeting);
  void on_accepted(const Accepted& accepted);
  void on_end(const Status& why);
  void watch_attempt();
  void retry_later(const std::string& error);
  void fail(Status cause);

  boost::asio::io_context& context_;
  const JoinRequest& request_;
  Bytes key_;
  Clock::time_point deadline_;
  std::vector<tcp::endpoint> endpoints_;
  std::size_t next_endpoint_ = 0;
  tcp::socket socket_;
  std::shared_ptr<Link> link_;
  std::uint64_t attempt_ = 0;  // timers and handlers of earlier attempts know that they are old
  boost::asio::steady_timer attempt_timer_;
  boost::asio::steady_timer deadline_timer_;
  std::chrono::milliseconds pause_ = kFirstPause;
  std::minstd_rand jitter_{std::random_device{}()};
  Step step_ = Step::Connecting;
  Clock::time_point hello_sent_;
  std::string last_error_ = "no attempt was made";
  std::optional<Status> failure_;
  Enrolled result_;
  bool finished_ = false;
};

Enrolled Enrolment::run() {
  watch_deadline(deadline_);
  attempt();
  while (!finished_) {
    if (context_.stopped()) context_.restart();
    context_.run_one();
  }
  attempt_timer_.cancel();
  deadline_timer_.cancel();
  if (failure_) {
    if (link_) Link::finish({link_}, kFlush, kDrain);
    throw Error(*failure_);
  }
  result_.link = std::move(link_);
  return std::move(result_);
}

void Enrolment::watch_deadline(Clock::time_point until) {
  deadline_timer_.expires_at(until);
  deadline_timer_.async_wait([weak = weak_from_this()](const error_code& error) {
    const auto self = weak.lock();
    if (self && !error && !self->finished_) self->on_deadline();
  });
}

void Enrolment::on_deadline() {
  if (step_ != Step::AwaitTable) {
    return fail({Code::Timeout,
                 "rank " + std::to_string(request_.rank) + " cannot reach rank 0 at " + root() +
                     " within " + duration_text(request_.join_timeout) + ": " + last_error_,
                 {},
                 0});
  }
  if (Clock::now() < deadline_ + kVerdictGrace) return watch_deadline(deadline_ + kVerdictGrace);
  fail({Code::Timeout,
        "rank 0 at " + root() + " accepted rank " + std::to_string(request_.rank) +
            " but has not completed the join within " + duration_text(request_.join_timeout) +
            ": it hangs",
        {},
        0});
}

void Enrolment::attempt() {
  step_ = Step::Connecting;
  ++attempt_;
  try {
    endpoints_ = resolve(request_.root_host, request_.root_port);
  } catch (const Error& error) {
    return retry_later(error.status().message());  // names may appear later than the ranks
  }
  next_endpoint_ = 0;
  connect_next();
}

void Enrolment::connect_next() {
  if (next_endpoint_ == endpoints_.size()) return retry_later(last_error_);
  const tcp::endpoint endpoint = endpoints_[next_endpoint_++];
  ++attempt_;
  if (const error_code error = open_socket(endpoint)) return on_connect(error);
  watch_attempt();
  socket_.async_connect(endpoint,
                        [weak = weak_from_this(), id = attempt_](const error_code& error) {
                          const auto self = weak.lock();
                          if (self && !self->finished_ && self->attempt_ == id)
                            self->on_connect(error);
                        });
}

error_code Enrolment::open_socket(const tcp::endpoint& endpoint) {
  error_code error;
  socket_.close(error);
  socket_.open(endpoint.protocol(), error);
  if (error || request_.interface.empty() || endpoint.address().is_loopback()) return error;
  for (const auto& address : interface_addresses(request_.interface)) {
    if (address.is_v4() != endpoint.address().is_v4()) continue;
    socket_.bind({address, 0}, error);
    return error;
  }
  return boost::asio::error::make_error_code(boost::asio::error::address_family_not_supported);
}

void Enrolment::on_connect(const error_code& error) {
  if (error) {
    last_error_ = error.message();
    return connect_next();
  }
  error_code ignored;
  if (socket_.local_endpoint(ignored) == socket_.remote_endpoint(ignored)) {
    // Nobody listens, and TCP has connected the socket with itself (simultaneous open). Reset it,
    // or it would keep rank 0 from its port.
    socket_.set_option(boost::asio::socket_base::linger(true, 0), ignored);
    socket_.close(ignored);
    last_error_ = "connection refused";
    return connect_next();
  }
  step_ = Step::AwaitGreeting;
  last_error_ = "connected, but rank 0 does not answer";
  link_ = std::make_shared<Link>(std::move(socket_), kGreetingCap);
  socket_ = tcp::socket(context_);
  link_->read(
      [weak = weak_from_this(), id = attempt_](FrameType type, ByteView body) {
        const auto self = weak.lock();
        if (self && !self->finished_ && self->attempt_ == id) self->on_frame(type, body);
      },
      [weak = weak_from_this(), id = attempt_](const Status& why) {
        const auto self = weak.lock();
        if (self && !self->finished_ && self->attempt_ == id) self->on_end(why);
      });
}

void Enrolment::on_frame(FrameType type, ByteView body) {
  if (type == FrameType::Greeting && step_ == Step::AwaitGreeting) {
    return on_greeting(decode_greeting(body));
  }
  if (type == FrameType::Refused && step_ == Step::AwaitAcceptance) {
    return fail({Code::Protocol, "rank 0 at " + root() + " refused rank " +
                                     std::to_string(request_.rank) + ": " +
                                     to_string(decode_refusal(body))});
  }
  if (type == FrameType::Verdict && step_ >= Step::AwaitAcceptance) {
    return fail(decode_status(body));
  }
  if (type == FrameType::Accepted && step_ == Step::AwaitAcceptance) {
    return on_accepted(decode_accepted(body));
  }
  if (type == FrameType::Table && step_ == Step::AwaitTable) {
    result_.members = decode_table(body, request_.size);
    link_->set_cap(kMemberCap);
    link_->pause();
    finished_ = true;
    return;
  }
  throw Error(Code::Protocol, "an unexpected control message during the join");
}

void Enrolment::on_greeting(const Greeting& greeting) {
  if (greeting.version != kProtocolVersion) {
    return fail({Code::Mismatch, "the control protocol's version differs: rank 0 speaks " +
                                     std::to_string(greeting.version) + ", rank " +
                                     std::to_string(request_.rank) + " speaks " +
                                     std::to_string(kProtocolVersion) +
                                     ": install the same version of Tersum everywhere"});
  }
  step_ = Step::AwaitAcceptance;
  Hello hello;
  hello.job = request_.job;
  hello.rank = request_.rank;
  hello.size = request_.size;
  hello.nonce = random_nonce();
  hello.patience = std::chrono::ceil<std::chrono::milliseconds>(deadline_ - Clock::now());
  hello.settings = request_.settings;
  hello.member = {request_.host_id, request_.address};
  link_->set_cap(table_cap(request_.size));
  link_->seal(session_key(key_, greeting.nonce, hello.nonce), false);
  Bytes body = encode(hello, key_, greeting.nonce);
  hello_sent_ = Clock::now();
  link_->send(FrameType::Hello, std::move(body));
}

void Enrolment::on_accepted(const Accepted& accepted) {
  // Rank 0 read its clock at about the middle of the round trip.
  const Clock::time_point middle = hello_sent_ + (Clock::now() - hello_sent_) / 2;
  result_.clock_offset = std::chrono::nanoseconds(accepted.clock_ns) -
                         std::chrono::nanoseconds(middle.time_since_epoch());
  step_ = Step::AwaitTable;
  attempt_timer_.cancel();
}

void Enrolment::on_end(const Status& why) {
  if (why.code() == Code::Protocol) {
    const bool stranger = step_ == Step::AwaitGreeting;
    return fail({Code::Protocol, stranger
                                     ? root() +
                                           " answers, but is not rank 0 of a Tersum job: check "
                                           "TERSUM_ROOT (" +
                                           why.message() + ")"
                                     : "rank 0 at " + root() + " sent " + why.message()});
  }
  if (step_ == Step::AwaitTable) {
    return fail(
        {Code::PeerLost, "rank 0 died (" + why.message() + ") while the job was joining", {}, 0});
  }
  retry_later(why.message());
}

void Enrolment::watch_attempt() {
  attempt_timer_.expires_after(kAttemptTimeout);
  attempt_timer_.async_wait([weak = weak_from_this(), id = attempt_](const error_code& error) {
    const auto self = weak.lock();
    if (!self || error || self->finished_ || self->attempt_ != id) return;
    if (self->step_ == Step::AwaitTable) return;
    if (self->step_ != Step::Connecting) return self->retry_later(self->last_error_);
    self->last_error_ = "no answer to the attempt to connect";
    self->connect_next();
  });
}

void Enrolment::retry_later(const std::string& error) {
  last_error_ = error;
  ++attempt_;
  step_ = Step::Connecting;
  error_code ignored;
  socket_.close(ignored);
  if (link_) link_->close();
  // Random pauses, so that thousands of ranks do not come in step.
  const auto longest = pause_.count();
  const std::chrono::milliseconds pause(
      std::uniform_int_distribution<long>(longest / 2, longest)(jitter_));
  pause_ = std::min(pause_ * 2, kLongestPause);
  attempt_timer_.expires_after(pause);
  attempt_timer_.async_wait([weak = weak_from_this(), id = attempt_](const error_code& failed) {
    const auto self = weak.lock();
    if (self && !failed && !self->finished_ && self->attempt_ == id) self->attempt();
  });
}

void Enrolment::fail(Status cause) {
  failure_ = std::move(cause);
  finished_ = true;
}

}  // namespace

Enrolled enrol(boost::asio::io_context& context, const JoinRequest& request) {
  return std::make_shared<Enrolment>(context, request)->run();
}

}  // namespace tersum::transport::control
