// Endpoints: opened when needed, given up when they fail, closed in the end.
#include <poll.h>

#include <algorithm>

#include "transport/ucx_transport_impl.hpp"

namespace tersum::transport {

namespace {

/// How long close() waits, after its deadline, for UCX to let go of what was ended by force.
constexpr std::chrono::milliseconds kForceGrace{300};
/// How long UCX may take to end what was under way with a peer that was given up. Over shared
/// memory it sometimes never does (a queue that the dead peer would have to empty).
constexpr std::chrono::milliseconds kStuckGrace{200};
/// Bound of the work on what a dead process has left, should other peers never pause.
constexpr int kLastRounds = 1000;
/// close() sleeps this long at most before it looks again, should a wake-up get lost.
constexpr std::chrono::milliseconds kNap{20};

}  // namespace

/// UCX tells of a peer's death only through an endpoint, so whoever expects something from a peer
/// needs one, even if it never sends.
void UcxTransport::want_endpoint(Peer& peer) {
  if (peer.endpoint != nullptr || peer.endpoint_wanted || peer.rank == rank_ || closing_) return;
  peer.endpoint_wanted = true;
  to_open_.push_back(&peer);
}

bool UcxTransport::open_wanted() {
  if (to_open_.empty()) return false;
  std::vector<Peer*> wanted;
  wanted.swap(to_open_);
  for (Peer* peer : wanted) {
    peer->endpoint_wanted = false;
    if (peer->alive && peer->endpoint == nullptr) open_endpoint(*peer);
  }
  return true;
}

bool UcxTransport::open_endpoint(Peer& peer) {
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(peer.address.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.cb = &UcxTransport::on_error;
  params.err_handler.arg = &peer;
  if (!peer.watched && peer.same_host) processes_.add(peer.rank, peer.process);
  peer.watched = true;
  const ucs_status_t status = ucp_ep_create(context_.worker(), &params, &peer.endpoint);
  if (status == UCS_OK) return true;
  peer.endpoint = nullptr;
  break_peer(peer, "UCX cannot reach it with transports '" + transports_ +
                       "': " + describe(status) +
                       "; ranks on one host may use shm, others need tcp or auto");
  return false;
}

void UcxTransport::on_error(void* arg, ucp_ep_h /*endpoint*/, ucs_status_t status) {
  auto& peer = *static_cast<Peer*>(arg);
  peer.owner->break_peer(peer, describe(status));
}

/// Records that a peer has failed. May be called from anywhere; progress() draws the consequences.
void UcxTransport::break_peer(Peer& peer, const std::string& why) {
  if (peer.broken || !peer.alive) return;
  peer.broken = true;
  peer.cause = peer_lost(peer.rank, why);
  broken_.push_back(&peer);
}

bool UcxTransport::bury_broken() {
  if (broken_.empty()) return false;
  std::vector<Peer*> broken;
  broken.swap(broken_);
  for (Peer* peer : broken) {
    if (!peer->alive) continue;
    const Status cause = peer->cause;
    if (!peer->left && !closing_) listener_->on_peer_failure(peer->rank, cause);
    if (peer->alive) give_up(*peer, cause, peer->left);  // the listener may have disconnected it
  }
  return true;
}

void UcxTransport::disconnect(int rank, const Status& cause) {
  Peer& from = peer(rank);
  if (!from.alive) return;
  give_up(from, cause, false);
  // Over shared memory the other side would not notice otherwise. It may fail to arrive; then that
  // side depends on the same news as this one.
  if (from.endpoint != nullptr) send(from, WireHeader::Kind::Hangup, {}, {}, nullptr);
}

/// Breaks with peers whose processes are gone, after all that they have sent was taken. True if
/// there are any.
bool UcxTransport::look_at_processes() {
  calls_since_look_ = 0;
  const std::vector<int> ended = processes_.ended();
  if (ended.empty()) return false;
  for (int i = 0; i < kLastRounds && progress_worker(); ++i) {
  }
  for (const int rank : ended) {
    processes_.remove(rank);
    break_peer(*peers_[static_cast<std::size_t>(rank)], "its process has ended");
  }
  return true;
}

/// Ends everything with a peer. What UCX has in hand ends when the endpoint is closed.
void UcxTransport::give_up(Peer& peer, const Status& cause, bool keep_complete_messages) {
  peer.alive = false;
  peer.cause = cause;
  processes_.remove(peer.rank);
  matcher_.withdraw_if([&](int from, const Key&) { return from == peer.rank; },
                       [&](Request& request) { completions_.push(request, cause, 0); });
  matcher_.release_if(
      [&](const Arrival& kept) {
        const auto source = static_cast<const UcxArrival&>(kept).payload.source;
        return kept.peer == peer.rank &&
               !(keep_complete_messages && source != Payload::Source::Rendezvous);
      },
      [&](Arrival& kept) { release(static_cast<UcxArrival&>(kept), cause); });
  for (const auto& [sequence, arrival] : peer.early) release(*arrival, cause);
  peer.early.clear();
  if (peer.rank == rank_) {
    for (UcxArrival* arrival : self_sends_) release(*arrival, cause);
    self_sends_.clear();
  }
  if (peer.endpoint != nullptr) to_close_.push_back(&peer);
  peer.given_up = Clock::now();
  given_up_.push_back(&peer);
}

/// Ends the requests that UCX should have ended when it closed their endpoint, and has not. Their
/// flights stay until UCX calls back; nobody reads or writes their buffers any more.
bool UcxTransport::abandon_stuck() {
  if (given_up_.empty()) return false;
  const auto now = Clock::now();
  const auto due = std::partition(given_up_.begin(), given_up_.end(), [&](const Peer* peer) {
    return now - peer->given_up < kStuckGrace;
  });
  bool any = false;
  for (auto it = due; it != given_up_.end(); ++it) {
    for (Flight* flight : flights_) {
      if (flight->peer != (*it)->rank || flight->request == nullptr) continue;
      completions_.push(*flight->request, (*it)->cause, 0);
      flight->request = nullptr;
      any = true;
    }
  }
  given_up_.erase(due, given_up_.end());
  return any;
}

/// True while UCX works on something that can still end well.
bool UcxTransport::busy() const {
  return std::any_of(flights_.begin(), flights_.end(), [&](const Flight* flight) {
    return flight->request != nullptr || peers_[static_cast<std::size_t>(flight->peer)]->alive;
  });
}

bool UcxTransport::close_endpoints() {
  if (to_close_.empty()) return false;
  std::vector<Peer*> peers;
  peers.swap(to_close_);
  for (Peer* peer : peers) close_endpoint(*peer);
  return true;
}

void UcxTransport::close_endpoint(Peer& peer) {
  if (peer.endpoint == nullptr) return;
  ucp_request_param_t param{};
  param.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = UCP_EP_CLOSE_FLAG_FORCE;
  param.cb.send = &UcxTransport::on_closed;
  param.user_data = &peer;
  const ucs_status_ptr_t result = ucp_ep_close_nbx(peer.endpoint, &param);
  peer.endpoint = nullptr;
  if (UCS_PTR_IS_PTR(result)) ++peer.closes_in_flight;
}

void UcxTransport::on_closed(void* request, ucs_status_t /*status*/, void* user_data) {
  ucp_request_free(request);
  --static_cast<Peer*>(user_data)->closes_in_flight;
}

void UcxTransport::on_flushed(void* request, ucs_status_t /*status*/, void* user_data) {
  ucp_request_free(request);
  --static_cast<UcxTransport*>(user_data)->flushes_in_flight_;
}

/// Moves UCX on until `done()` or `until`.
template <class Done>
void UcxTransport::wait(Clock::time_point until, Done done) {
  while (true) {
    const bool any = progress_worker() | look_at_processes() | bury_broken() | close_endpoints() |
                     abandon_stuck();
    if (done()) return;
    const auto left = until - Clock::now();
    if (left <= Clock::duration::zero()) return;
    if (any || ucp_worker_arm(context_.worker()) != UCS_OK) continue;
    pollfd wakeup{descriptor(), POLLIN, 0};
    const auto nap =
        std::chrono::ceil<std::chrono::milliseconds>(std::min<Clock::duration>(left, kNap));
    (void)poll(&wakeup, 1, static_cast<int>(nap.count()));
  }
}

void UcxTransport::close(std::chrono::milliseconds deadline) noexcept {
  if (closed_) return;
  closing_ = true;
  try {
    shut_down(Clock::now() + deadline);
  } catch (const std::exception&) {
    // Only memory can be short here; what is left goes down with the worker.
  }
  closed_ = true;
  context_.destroy();
}

void UcxTransport::shut_down(Clock::time_point until) {
  abort_waiting();
  wait(until, [&] { return !busy(); });
  for (const auto& peer : peers_) {
    if (peer->alive && peer->endpoint != nullptr) {
      send(*peer, WireHeader::Kind::Goodbye, {}, {}, nullptr);
    }
  }
  flush(until);
  wait(Clock::now() + kForceGrace, [&] {
    return !busy() && std::all_of(peers_.begin(), peers_.end(),
                                  [](const auto& peer) { return peer->closes_in_flight == 0; });
  });
  for (Flight* flight : flights_) {
    if (flight->request == nullptr) continue;
    completions_.push(*flight->request, {Code::Aborted, "the transport was closed"}, 0);
    flight->request = nullptr;
  }
  while (completions_.deliver()) {
  }
}

/// Ends what waits on our side: posted receives, kept messages, sends to ourselves.
void UcxTransport::abort_waiting() {
  const Status closed(Code::Aborted, "the transport was closed");
  matcher_.withdraw_if([](int, const Key&) { return true; },
                       [&](Request& request) { completions_.push(request, closed, 0); });
  matcher_.release_if([](const Arrival&) { return true; },
                      [&](Arrival& kept) { release(static_cast<UcxArrival&>(kept), closed); });
  for (UcxArrival* arrival : self_sends_) release(*arrival, closed);
  self_sends_.clear();
  for (const auto& peer : peers_) {
    for (const auto& [sequence, arrival] : peer->early) release(*arrival, closed);
    peer->early.clear();
  }
}

/// Flushes all endpoints until the deadline, then closes them: those that have nothing left to say
/// in good order, the others by force.
void UcxTransport::flush(Clock::time_point until) {
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.cb.send = &UcxTransport::on_flushed;
  param.user_data = this;
  for (const auto& peer : peers_) {
    if (!peer->alive || peer->endpoint == nullptr) continue;
    if (UCS_PTR_IS_PTR(ucp_ep_flush_nbx(peer->endpoint, &param))) ++flushes_in_flight_;
  }
  wait(until, [&] { return flushes_in_flight_ == 0 && !busy(); });
  for (const auto& peer : peers_) close_endpoint(*peer);
}

}  // namespace tersum::transport
