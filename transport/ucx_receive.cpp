// What arrives: checked, put back into its sender's order, shown to the listener, matched or kept.
#include <cstring>

#include "transport/ucx_transport_impl.hpp"

namespace tersum::transport {

void UcxTransport::listen() {
  ucp_am_handler_param_t param{};
  param.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                     UCP_AM_HANDLER_PARAM_FIELD_ARG | UCP_AM_HANDLER_PARAM_FIELD_FLAGS;
  param.id = kMessageId;
  param.cb = &UcxTransport::on_message;
  param.arg = this;
  // UCX can put bytes into device memory only if it may keep them; host memory is cheaper without.
  if (context_.device_memory()) param.flags = UCP_AM_FLAG_PERSISTENT_DATA;
  const ucs_status_t status = ucp_worker_set_am_recv_handler(context_.worker(), &param);
  if (status != UCS_OK) {
    throw Error(Code::System, "UCX takes no handler for active messages: " + describe(status));
  }
}

ucs_status_t UcxTransport::on_message(void* arg, const void* header, std::size_t header_length,
                                      void* data, std::size_t length,
                                      const ucp_am_recv_param_t* param) {
  auto& self = *static_cast<UcxTransport*>(arg);
  WireHeader checked;
  if (header_length != sizeof(checked)) return UCS_OK;  // not ours: dropped unread
  std::memcpy(&checked, header, sizeof(checked));
  if (checked.magic != WireHeader::kMagic || checked.version != WireHeader::kVersion ||
      checked.source >= self.peers_.size() || static_cast<int>(checked.source) == self.rank_ ||
      checked.kind > WireHeader::Kind::Hangup) {
    return UCS_OK;
  }
  Payload payload{Payload::Source::Transient, data, length};
  if ((param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0) {
    payload.source = Payload::Source::Rendezvous;
  } else if ((param->recv_attr & UCP_AM_RECV_ATTR_FLAG_DATA) != 0 && length > 0) {
    payload.source = Payload::Source::Retained;
  }
  try {
    return self.take(checked, payload);
  } catch (const std::exception& error) {
    // Nothing may be thrown through UCX. A message that could not be kept is lost, and so is its
    // peer.
    self.break_peer(*self.peers_[checked.source],
                    std::string("a message from it could not be taken: ") + error.what());
    return UCS_OK;
  }
}

ucs_status_t UcxTransport::take(const WireHeader& header, const Payload& payload) {
  Peer& peer = *peers_[header.source];
  if (!peer.alive) return UCS_OK;
  if (header.kind == WireHeader::Kind::Hangup) {
    break_peer(peer, "it has broken the connection off");
    return UCS_OK;
  }
  if (header.sequence < peer.next_receive) return UCS_OK;
  want_endpoint(peer);
  if (header.sequence > peer.next_receive) {
    if (peer.early.contains(header.sequence)) return UCS_OK;
    UcxArrival& arrival = hold(peer.rank, header.kind, header.envelope, payload);
    const bool ours = arrival.payload.source == Payload::Source::Copied ||
                      arrival.payload.source == Payload::Source::Transient;
    peer.early.emplace(header.sequence, &arrival);
    return ours ? UCS_OK : UCS_INPROGRESS;
  }
  ++peer.next_receive;
  const bool kept = deliver(peer, header.kind, header.envelope, payload, nullptr);
  deliver_early(peer);
  return kept ? UCS_INPROGRESS : UCS_OK;
}

void UcxTransport::deliver_early(Peer& peer) {
  while (!peer.early.empty() && peer.early.begin()->first == peer.next_receive) {
    UcxArrival& arrival = *peer.early.begin()->second;
    peer.early.erase(peer.early.begin());
    ++peer.next_receive;
    if (!deliver(peer, arrival.message, arrival.envelope, arrival.payload, &arrival)) {
      release(arrival, {});
    }
  }
}

/// One message whose turn it is; `held` if it waited. True if its bytes (and `held`) are still in
/// use or have been handed on, false if the caller is to release them.
bool UcxTransport::deliver(Peer& peer, WireHeader::Kind kind, const Envelope& envelope,
                           const Payload& payload, UcxArrival* held) {
  if (kind == WireHeader::Kind::Goodbye) {
    peer.left = true;
    break_peer(peer, "it has left the job");
    return false;
  }
  if (closing_) return false;
  if (listener_->on_arrival(peer.rank, envelope, payload.bytes) == Listener::Verdict::Drop) {
    return false;
  }
  if (!peer.alive) return false;  // the listener may have given it up
  const Matcher::Match match = matcher_.match(peer.rank, envelope.key);
  if (match.request == nullptr) {
    UcxArrival& arrival = held != nullptr ? *held : hold(peer.rank, kind, envelope, payload);
    matcher_.keep(arrival);
    return held != nullptr || arrival.payload.source == Payload::Source::Retained ||
           arrival.payload.source == Payload::Source::Rendezvous;
  }
  if (payload.source == Payload::Source::Self) {
    receive_self(*held, match.buffer, *match.request);
    return true;
  }
  if (!fill(peer.rank, envelope.key, payload, match.buffer, *match.request)) return false;
  if (held != nullptr) arrivals_.give(*held);
  return true;
}

UcxArrival& UcxTransport::hold(int peer, WireHeader::Kind kind, const Envelope& envelope,
                               const Payload& payload) {
  UcxArrival& arrival = arrivals_.take();
  arrival.peer = peer;
  arrival.key = envelope.key;
  arrival.envelope = envelope;
  arrival.bytes = payload.bytes;
  arrival.message = kind;
  arrival.payload = payload;
  if (payload.source == Payload::Source::Transient && payload.bytes > 0) {
    const auto* begin = static_cast<const std::byte*>(payload.data);
    arrival.copy.assign(begin, begin + payload.bytes);
    arrival.payload = {Payload::Source::Copied, arrival.copy.data(), payload.bytes};
  }
  return arrival;
}

void UcxTransport::release(UcxArrival& arrival, const Status& self_send_status) {
  switch (arrival.payload.source) {
    case Payload::Source::Retained:
    case Payload::Source::Rendezvous:
      ucp_am_data_release(context_.worker(), arrival.payload.data);
      break;
    case Payload::Source::Self:
      completions_.push(*arrival.request, self_send_status,
                        self_send_status.is_ok() ? arrival.bytes : 0);
      break;
    case Payload::Source::Copied:
    case Payload::Source::Transient:
      break;
  }
  arrivals_.give(arrival);
}

/// Moves a message into its receive's buffer. True if UCX has taken the payload over, false if the
/// caller is to release it.
bool UcxTransport::fill(int peer, const Key& key, const Payload& payload, Buffer buffer,
                        Request& request) {
  if (payload.bytes > buffer.bytes) {
    completions_.push(request, too_long(peer, key, payload.bytes, buffer.bytes), 0);
    return false;
  }
  if (payload.source == Payload::Source::Rendezvous ||
      (buffer.memory == MemoryType::Cuda && payload.source == Payload::Source::Retained)) {
    start_receive(peer, payload, buffer, request);
    return true;
  }
  if (payload.bytes > 0) std::memcpy(buffer.data, payload.data, payload.bytes);
  completions_.push(request, Status::ok(), payload.bytes);
  return false;
}

void UcxTransport::start_receive(int peer, const Payload& payload, Buffer buffer,
                                 Request& request) {
  Flight& flight = take_off(Operation::Kind::Receive, peer, payload.bytes, &request);
  ucp_request_param_t param{};
  param.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  param.cb.recv_am = &UcxTransport::on_received;
  param.user_data = &flight;
  param.memory_type =
      buffer.memory == MemoryType::Cuda ? UCS_MEMORY_TYPE_CUDA : UCS_MEMORY_TYPE_HOST;
  if (buffer.registration != nullptr) {
    param.op_attr_mask |= UCP_OP_ATTR_FIELD_MEMH;
    param.memh = static_cast<ucp_mem_h>(buffer.registration);
  }
  const ucs_status_ptr_t result =
      ucp_am_recv_data_nbx(context_.worker(), payload.data, buffer.data, payload.bytes, &param);
  if (UCS_PTR_IS_ERR(result)) return land(flight, UCS_PTR_STATUS(result));
  if (result == nullptr) return land(flight, UCS_OK);
  follow(flight);
}

void UcxTransport::receive_self(UcxArrival& arrival, Buffer buffer, Request& request) {
  if (arrival.bytes > buffer.bytes) {
    completions_.push(request, too_long(rank_, arrival.key, arrival.bytes, buffer.bytes), 0);
    return release(arrival, Status::ok());
  }
  if (buffer.memory == MemoryType::Cuda || arrival.memory == MemoryType::Cuda) {
    const Status refused(Code::Unsupported,
                         "a rank's messages to itself do not move device memory; copy it on the "
                         "device");
    completions_.push(request, refused, 0);
    return release(arrival, refused);
  }
  if (arrival.bytes > 0) std::memmove(buffer.data, arrival.payload.data, arrival.bytes);
  completions_.push(request, Status::ok(), arrival.bytes);
  release(arrival, Status::ok());
}

}  // namespace tersum::transport
