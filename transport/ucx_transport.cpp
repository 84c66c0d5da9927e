#include "transport/ucx_transport.hpp"

#include <cstring>
#include <string_view>
#include <utility>

#include "transport/ucx_transport_impl.hpp"

namespace tersum::transport {

namespace {

/// In front of the UCX addresses that ranks exchange: first the one for ranks of the same host,
/// then the one for others.
struct AddressHeader {
  std::uint32_t magic = 0x58435554;  // "TUCX"
  std::uint16_t version = 2;
  std::uint16_t local_bytes = 0;
  std::uint64_t host = 0;  ///< hash of its name
  ProcessIdentity process;
};

/// FNV-1a.
std::uint64_t hash_of(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325ull;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
  return hash;
}

AddressHeader read_header(int rank, const std::vector<std::byte>& address) {
  AddressHeader header;
  const AddressHeader expected;
  if (address.size() > sizeof(header)) std::memcpy(&header, address.data(), sizeof(header));
  if (address.size() <= sizeof(header) + header.local_bytes || header.magic != expected.magic ||
      header.version != expected.version) {
    throw Error(
        Code::Mismatch,
        "the address of rank " + std::to_string(rank) + " (" + std::to_string(address.size()) +
            " bytes, version " + std::to_string(header.version) +
            ") is not one of this UCX transport (version " + std::to_string(expected.version) +
            "); all ranks must use the same transport and version of Tersum");
  }
  return header;
}

/// After so many calls of progress() peers' processes are looked at, which takes a system call.
constexpr unsigned kCallsPerLook = 1000;

/// How often one progress() asks UCX again while it has something to do: enough for a burst of
/// small messages, not so much that other work of the thread starves.
constexpr int kProgressRounds = 16;

}  // namespace

std::unique_ptr<Transport> make_ucx_transport(const UcxOptions& options) {
  return std::make_unique<UcxTransport>(options);
}

UcxTransport::UcxTransport(const UcxOptions& options)
    : transports_(options.transports),
      host_(hash_of(options.host)),
      context_(options),
      processes_(context_.descriptor()) {
  listen();
}

UcxTransport::~UcxTransport() {
  close(std::chrono::milliseconds(0));
}

Capabilities UcxTransport::capabilities() const noexcept {
  return {.device_memory = context_.device_memory(),
          .crosses_hosts = transports_ != "shm",
          .blocking_wait = true};
}

std::vector<std::byte> UcxTransport::address() const {
  const std::vector<std::byte> local = context_.address(UcxContext::Reach::Anywhere),
                               network = context_.address(UcxContext::Reach::OverNetworks);
  AddressHeader header;
  header.host = host_;
  header.process = this_process();
  header.local_bytes = static_cast<std::uint16_t>(local.size());
  std::vector<std::byte> address(sizeof(header) + local.size() + network.size());
  std::memcpy(address.data(), &header, sizeof(header));
  std::memcpy(address.data() + sizeof(header), local.data(), local.size());
  std::memcpy(address.data() + sizeof(header) + local.size(), network.data(), network.size());
  return address;
}

void UcxTransport::connect(int rank, const std::vector<std::vector<std::byte>>& addresses,
                           Listener& listener) {
  if (listener_ != nullptr)
    throw Error(Code::InvalidState, "the UCX transport is connected already");
  check_peer(rank, static_cast<int>(addresses.size()));
  std::vector<std::unique_ptr<Peer>> peers;
  for (const auto& address : addresses) {
    auto peer = std::make_unique<Peer>();
    peer->owner = this;
    peer->rank = static_cast<int>(peers.size());
    const AddressHeader header = read_header(peer->rank, address);
    peer->process = header.process;
    peer->same_host = header.host == host_;
    const auto local = address.begin() + sizeof(AddressHeader);
    const auto network = local + header.local_bytes;
    peer->address.assign(peer->same_host ? local : network,
                         peer->same_host ? network : address.end());
    peers.push_back(std::move(peer));
  }
  peers_ = std::move(peers);
  rank_ = rank;
  listener_ = &listener;
}

UcxTransport::Peer& UcxTransport::peer(int rank) {
  if (listener_ == nullptr) {
    throw Error(Code::InvalidState, "the UCX transport is not connected; call connect() first");
  }
  check_peer(rank, static_cast<int>(peers_.size()));
  return *peers_[static_cast<std::size_t>(rank)];
}

/// Queues the end of a request that cannot be posted. False if it can.
bool UcxTransport::refuse(Peer& peer, MemoryType memory, Request& request) {
  if (closing_) {
    completions_.push(request, {Code::Aborted, "the transport was closed"}, 0);
  } else if (!peer.alive) {
    completions_.push(request, peer.cause, 0);
  } else if (memory == MemoryType::Cuda && !context_.device_memory()) {
    completions_.push(request,
                      {Code::Unsupported,
                       "UCX " + ucx_version() +
                           " has no CUDA transports here; stage the buffer in host memory or use a "
                           "UCX built with CUDA"},
                      0);
  } else {
    return false;
  }
  return true;
}

std::string UcxTransport::route(int rank) {
  const Peer& to = peer(rank);
  return to.endpoint == nullptr ? std::string() : lanes_of(to.endpoint);
}

void UcxTransport::post_send(int rank, const Envelope& envelope, ConstBuffer buffer,
                             Request& request) {
  Peer& to = peer(rank);
  if (refuse(to, buffer.memory, request)) return;
  if (rank != rank_) return send(to, WireHeader::Kind::Data, envelope, buffer, &request);

  UcxArrival& arrival = arrivals_.take();
  arrival.peer = rank;
  arrival.key = envelope.key;
  arrival.envelope = envelope;
  arrival.bytes = buffer.bytes;
  arrival.kind = Operation::Kind::SelfSend;
  arrival.request = &request;
  arrival.message = WireHeader::Kind::Data;
  arrival.payload = {Payload::Source::Self, const_cast<void*>(buffer.data), buffer.bytes};
  arrival.memory = buffer.memory;
  RequestAccess::data(request) = static_cast<Operation*>(&arrival);
  self_sends_.push_back(&arrival);
}

void UcxTransport::send(Peer& peer, WireHeader::Kind kind, const Envelope& envelope,
                        ConstBuffer buffer, Request* request) {
  Flight& flight = take_off(Operation::Kind::Send, peer.rank, buffer.bytes, request);
  if (peer.endpoint == nullptr && !open_endpoint(peer)) {
    return land(flight, UCS_ERR_UNREACHABLE);
  }
  flight.header = {.kind = kind,
                   .source = static_cast<std::uint32_t>(rank_),
                   .sequence = peer.next_send,
                   .envelope = envelope};
  ucp_request_param_t param{};
  param.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  param.cb.send = &UcxTransport::on_sent;
  param.user_data = &flight;
  param.memory_type =
      buffer.memory == MemoryType::Cuda ? UCS_MEMORY_TYPE_CUDA : UCS_MEMORY_TYPE_HOST;
  if (buffer.registration != nullptr) {
    param.op_attr_mask |= UCP_OP_ATTR_FIELD_MEMH;
    param.memh = static_cast<ucp_mem_h>(buffer.registration);
  }
  const ucs_status_ptr_t result =
      ucp_am_send_nbx(peer.endpoint, kMessageId, &flight.header, sizeof(flight.header), buffer.data,
                      buffer.bytes, &param);
  if (UCS_PTR_IS_ERR(result)) return land(flight, UCS_PTR_STATUS(result));
  ++peer.next_send;
  if (result == nullptr) return land(flight, UCS_OK);
  follow(flight);
}

UcxTransport::Flight& UcxTransport::take_off(Operation::Kind kind, int peer, std::size_t bytes,
                                             Request* request) {
  Flight& flight = flight_pool_.take();
  flight.kind = kind;
  flight.request = request;
  flight.owner = this;
  flight.peer = peer;
  flight.bytes = bytes;
  flight.listed = false;
  return flight;
}

void UcxTransport::follow(Flight& flight) {
  flight.listed = true;
  flight.position = flights_.size();
  flights_.push_back(&flight);
  if (flight.request != nullptr) {
    RequestAccess::data(*flight.request) = static_cast<Operation*>(&flight);
  }
}

void UcxTransport::land(Flight& flight, ucs_status_t status) {
  if (flight.listed) {
    flights_[flight.position] = flights_.back();
    flights_[flight.position]->position = flight.position;
    flights_.pop_back();
  }
  Peer& peer = *peers_[static_cast<std::size_t>(flight.peer)];
  if (status != UCS_OK && !closing_) break_peer(peer, describe(status));
  if (flight.request != nullptr) {
    // After disconnect() even what UCX still finishes ends with its cause: whether the other side
    // made use of it is anybody's guess.
    if (status == UCS_OK && (peer.alive || peer.left)) {
      completions_.push(*flight.request, Status::ok(), flight.bytes);
    } else if (!peer.alive || peer.broken) {
      completions_.push(*flight.request, peer.cause, 0);
    } else {
      completions_.push(*flight.request, {Code::Aborted, "the transport was closed"}, 0);
    }
  }
  flight_pool_.give(flight);
}

void UcxTransport::on_sent(void* request, ucs_status_t status, void* user_data) {
  ucp_request_free(request);
  auto& flight = *static_cast<Flight*>(user_data);
  flight.owner->land(flight, status);
}

void UcxTransport::on_received(void* request, ucs_status_t status, std::size_t /*length*/,
                               void* user_data) {
  on_sent(request, status, user_data);
}

void UcxTransport::post_receive(int rank, const Key& key, Buffer buffer, Request& request) {
  Peer& from = peer(rank);
  // A peer that has left may still have messages here.
  if (!(from.left && !closing_) && refuse(from, buffer.memory, request)) return;
  auto* arrival = static_cast<UcxArrival*>(matcher_.post(rank, key, buffer, request));
  if (arrival == nullptr) {
    if (from.alive) return want_endpoint(from);
    matcher_.withdraw(request);
    return completions_.push(request, from.cause, 0);
  }
  if (arrival->payload.source == Payload::Source::Self) {
    return receive_self(*arrival, buffer, request);
  }
  if (fill(rank, key, arrival->payload, buffer, request)) {
    arrivals_.give(*arrival);
  } else {
    release(*arrival, {});
  }
}

void UcxTransport::cancel(Request& request) {
  auto* operation = static_cast<Operation*>(RequestAccess::data(request));
  if (operation == nullptr) return;
  const Status cancelled(Code::Aborted, "the request was cancelled");
  if (matcher_.withdraw(request)) return completions_.push(request, cancelled, 0);
  // What UCX has in hand runs on: a withdrawn send would leave a hole in the peer's sequence.
  if (operation->kind != Operation::Kind::SelfSend) return;
  auto& arrival = static_cast<UcxArrival&>(*operation);
  if (std::erase(self_sends_, &arrival) == 0) {
    matcher_.release_if([&](const Arrival& kept) { return &kept == &arrival; }, [](Arrival&) {});
  }
  release(arrival, cancelled);
}

void UcxTransport::drop(std::uint32_t communicator, std::uint64_t operation) {
  matcher_.release_if(
      [&](const Arrival& kept) {
        return kept.key.communicator == communicator && kept.key.operation == operation;
      },
      [&](Arrival& kept) { release(static_cast<UcxArrival&>(kept), Status::ok()); });
}

bool UcxTransport::progress() {
  bool any = progress_worker();
  any |= progress_self();
  if (++calls_since_look_ >= kCallsPerLook) any |= look_at_processes();
  any |= bury_broken();
  any |= open_wanted();
  any |= close_endpoints();
  any |= abandon_stuck();
  any |= completions_.deliver();
  return any;
}

bool UcxTransport::progress_worker() {
  int rounds = 0;
  while (rounds < kProgressRounds && ucp_worker_progress(context_.worker()) != 0) ++rounds;
  return rounds > 0;
}

bool UcxTransport::progress_self() {
  const std::size_t count = self_sends_.size();  // those that callbacks add have to wait
  for (std::size_t i = 0; i < count && !self_sends_.empty(); ++i) {
    UcxArrival& arrival = *self_sends_.front();
    self_sends_.pop_front();
    if (!deliver(*peers_[static_cast<std::size_t>(rank_)], arrival.message, arrival.envelope,
                 arrival.payload, &arrival)) {
      release(arrival, Status::ok());
    }
  }
  return count > 0;
}

bool UcxTransport::arm() {
  if (!completions_.empty() || !self_sends_.empty() || !broken_.empty() || !to_open_.empty() ||
      !to_close_.empty()) {
    return false;
  }
  if (!processes_.ended().empty()) {
    calls_since_look_ = kCallsPerLook;  // the next progress() sees to it
    return false;
  }
  return ucp_worker_arm(context_.worker()) == UCS_OK;
}

}  // namespace tersum::transport
