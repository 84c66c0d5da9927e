#include "transport/control_core.hpp"

#include <algorithm>
#include <utility>

#include <boost/asio/post.hpp>

#include "transport/control_text.hpp"

namespace tersum::transport::control {
namespace {

using boost::system::error_code;
using namespace std::chrono_literals;

constexpr int kBeatsPerTimeout = 5;
constexpr auto kFarewellGrace = 200ms;  // for blobs still on their way after a failure
constexpr auto kFlush = 500ms;
constexpr auto kDrain = 200ms;

}  // namespace

Core::Core(boost::asio::io_context& context, const JoinRequest& request,
           std::vector<Member> members, std::chrono::nanoseconds clock_offset)
    : context_(context),
      rank_(request.rank),
      heartbeat_timeout_(request.heartbeat_timeout),
      start_timeout_(std::max(request.heartbeat_timeout, request.join_timeout)),
      members_(std::move(members)),
      clock_offset_(clock_offset),
      tick_timer_(context),
      grace_timer_(context) {}

void Core::start(ControlListener& listener) {
  if (listener_) throw Error(Code::InvalidState, "ControlPlane::start() was called already");
  listener_ = &listener;
  started_ = Link::Clock::now();
  if (failure_) later([this] { listener_->on_failure(*failure_); });
  on_start();
  for (const auto& link : links()) beat(*link);  // the peer counts silence from the first sign
  schedule_tick();
}

void Core::schedule_tick() {
  if (closed_ || failure_ || complete_) return;
  tick_timer_.expires_after(std::max<Link::Clock::duration>(
      Link::Clock::duration(heartbeat_timeout_) / kBeatsPerTimeout, 1ms));
  tick_timer_.async_wait([weak = weak_from_this()](const error_code& error) {
    const auto self = weak.lock();
    if (!self || error || self->closed_ || self->failure_ || self->complete_) return;
    self->on_tick();
    self->schedule_tick();
  });
}

void Core::later(std::function<void()> action) {
  boost::asio::post(context_, [weak = weak_from_this(), action = std::move(action)] {
    const auto self = weak.lock();
    if (self && !self->closed_) action();
  });
}

bool Core::record_failure(const Status& cause) {
  if (failure_ || complete_ || closed_) return false;
  failure_ = cause;
  if (listener_) later([this] { listener_->on_failure(*failure_); });
  return true;
}

void Core::tell_leave(int rank) {
  later([this, rank] { listener_->on_leave(rank); });
}

void Core::set_complete() {
  complete_ = true;
}

void Core::leave(Bytes blob, Done done) {
  if (!listener_) throw Error(Code::InvalidState, "ControlPlane::leave() before start()");
  if (leaving_) throw Error(Code::InvalidState, "ControlPlane::leave() was called already");
  if (blob.size() > kMaxBlobBytes) {
    throw Error(Code::InvalidArgument, "a good-bye carries at most " +
                                           std::to_string(kMaxBlobBytes) + " bytes, not " +
                                           std::to_string(blob.size()));
  }
  leaving_ = true;
  done_ = std::move(done);
  on_leaving(std::move(blob));
  check_done();
}

void Core::check_done() {
  if (!leaving_ || done_posted_ || closed_) return;
  if (failure_ && !grace_running_) start_grace();
  if (!complete_ && !(failure_ && (grace_over_ || nothing_to_wait_for()))) return;
  done_posted_ = true;
  later([this] {
    const Done done = std::exchange(done_, nullptr);
    if (done) done(take_blobs());
  });
}

void Core::start_grace() {
  grace_running_ = true;
  grace_timer_.expires_after(kFarewellGrace);
  grace_timer_.async_wait([weak = weak_from_this()](const error_code& error) {
    const auto self = weak.lock();
    if (!self || error || self->closed_) return;
    self->grace_over_ = true;
    self->check_done();
  });
}

void Core::close() noexcept {
  if (closed_) return;
  closed_ = true;
  error_code ignored;
  tick_timer_.cancel(ignored);
  grace_timer_.cancel(ignored);
  const auto open = links();
  // After the farewell, rank 0 has all that a client ever had to say.
  if (complete_ && rank_ != 0) {
    for (const auto& link : open) link->close();
  } else {
    Link::finish(open, kFlush, kDrain);
  }
}

std::optional<Status> Core::silence(Link& link, int peer) const {
  // A peer that has not started yet may be busy with its start.
  const auto limit = [&] { return link.has_spoken() ? heartbeat_timeout_ : start_timeout_; };
  const auto silent = [&] {
    return Link::Clock::now() - std::max(link.last_heard(), started_) > limit();
  };
  if (!silent()) return std::nullopt;
  link.read_now();  // if this process was held up, heartbeats are waiting in the socket
  if (link.closed() || !silent()) return std::nullopt;
  return Status{Code::PeerLost,
                "rank " + std::to_string(peer) + " hangs (no sign of life for " +
                    duration_text(limit()) + ")",
                {},
                peer};
}

void Core::beat(Link& link) {
  if (link.flushed()) link.send(FrameType::Heartbeat);
}

Status Core::loss(int peer, const Status& why) {
  const std::string who = "rank " + std::to_string(peer);
  if (why.code() == Code::Protocol)
    return {Code::Protocol, who + " sent " + why.message(), {}, peer};
  return {why.code(), who + " died (" + why.message() + ")", {}, peer};
}

}  // namespace tersum::transport::control
