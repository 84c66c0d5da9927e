#include "transport/loopback_transport.hpp"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <string>
#include <utility>

#include "transport/matcher.hpp"

namespace tersum::transport {

namespace {

/// A message on offer. The receiver claims it before it reads the sender's buffer, the sender
/// withdraws it before it gives the buffer back: only one of them can succeed.
struct Parcel : Operation {
  enum class State { Offered, Claimed, Withdrawn };
  int source = -1;
  int destination = -1;
  Envelope envelope;
  const void* data = nullptr;
  std::size_t bytes = 0;
  std::size_t position = 0;  // in the sender's list
  std::atomic<State> state{State::Offered};

  bool become(State next) {
    State offered = State::Offered;
    return state.compare_exchange_strong(offered, next, std::memory_order_acq_rel);
  }
};
using ParcelPtr = std::shared_ptr<Parcel>;

struct Mail {
  enum class Kind {
    Message,
    Done,  ///< the receiver is done with the parcel
    Lost,  ///< `from` is dead, or has given this rank up
    Left,  ///< `from` has closed
  };
  Kind kind = Kind::Message;
  int from = -1;
  ParcelPtr parcel;
};

struct KeptParcel : Arrival {
  ParcelPtr parcel;
};

}  // namespace

struct LoopbackHub::Mailbox {
  std::mutex mutex;
  std::vector<Mail> mail;
  bool armed = false;
  std::atomic<bool> killed{false};
  int descriptor = -1;

  Mailbox() : descriptor(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
    if (descriptor < 0) {
      throw Error(Code::System, std::string("eventfd: ") + std::strerror(errno));
    }
  }
  ~Mailbox() { ::close(descriptor); }
  Mailbox(const Mailbox&) = delete;
  Mailbox& operator=(const Mailbox&) = delete;

  void put(Mail item) {
    const std::lock_guard lock(mutex);
    mail.push_back(std::move(item));
    if (!std::exchange(armed, false)) return;
    (void)eventfd_write(descriptor, 1);  // fails only if it is readable already
  }
  void take_all(std::vector<Mail>& into) {
    const std::lock_guard lock(mutex);
    into.swap(mail);
  }
  bool arm() {
    const std::lock_guard lock(mutex);
    if (!mail.empty()) return false;
    eventfd_t ignored = 0;
    (void)eventfd_read(descriptor, &ignored);
    armed = true;
    return true;
  }
};

LoopbackHub::LoopbackHub(int ranks) {
  if (ranks <= 0) {
    throw Error(Code::InvalidArgument,
                "a loopback job needs at least 1 rank, not " + std::to_string(ranks));
  }
  for (int rank = 0; rank < ranks; ++rank) mailboxes_.push_back(std::make_unique<Mailbox>());
}

LoopbackHub::~LoopbackHub() = default;

int LoopbackHub::size() const noexcept {
  return static_cast<int>(mailboxes_.size());
}

void LoopbackHub::kill(int rank) {
  check_peer(rank, size());
  mailboxes_[static_cast<std::size_t>(rank)]->killed = true;
  for (int other = 0; other < size(); ++other) {
    if (other == rank) continue;
    mailboxes_[static_cast<std::size_t>(other)]->put({Mail::Kind::Lost, rank, nullptr});
  }
}

class LoopbackTransport final : public Transport {
 public:
  LoopbackTransport(std::shared_ptr<LoopbackHub> hub, int rank);
  ~LoopbackTransport() override { close(std::chrono::milliseconds(0)); }

  std::string_view name() const noexcept override { return "loopback"; }
  Capabilities capabilities() const noexcept override { return {}; }
  std::vector<std::byte> address() const override;
  void connect(int rank, const std::vector<std::vector<std::byte>>& addresses,
               Listener& listener) override;
  void* register_memory(const Buffer&) override { return nullptr; }
  std::string route(int) override { return "loopback"; }
  void post_send(int peer, const Envelope& envelope, ConstBuffer buffer, Request& request) override;
  void post_receive(int peer, const Key& key, Buffer buffer, Request& request) override;
  void cancel(Request& request) override;
  void drop(std::uint32_t communicator, std::uint64_t operation) override;
  bool progress() override;
  int descriptor() const override { return own().descriptor; }
  bool arm() override { return completions_.empty() && own().arm(); }
  void disconnect(int peer, const Status& cause) override;
  void close(std::chrono::milliseconds deadline) noexcept override;

 private:
  struct Peer {
    bool alive = true;
    Status cause;  // !alive: why
  };

  LoopbackHub::Mailbox& box(int rank) const {
    return *hub_->mailboxes_[static_cast<std::size_t>(rank)];
  }
  LoopbackHub::Mailbox& own() const { return box(rank_); }
  Peer& peer(int rank);
  bool refuse(Peer& peer, MemoryType memory, Request& request);
  bool read_mail();
  void handle(const Mail& mail);
  void arrive(const ParcelPtr& parcel);
  void receive(const ParcelPtr& parcel, Buffer buffer, Request& request);
  void finish(const ParcelPtr& parcel) {
    box(parcel->source).put({Mail::Kind::Done, rank_, parcel});
  }
  void forget(Parcel& parcel);
  void give_up(int rank, const Status& cause);
  void withdraw_sends(int to, const Status& cause);
  void refuse_kept(int from);
  void shut_down(std::chrono::steady_clock::time_point until);

  std::shared_ptr<LoopbackHub> hub_;
  int rank_;
  Listener* listener_ = nullptr;
  bool closing_ = false;
  bool closed_ = false;
  std::vector<Peer> peers_;
  std::vector<ParcelPtr> sent_;  // not done yet
  std::vector<Request*> limbo_;  // posted after this rank was killed
  std::vector<Mail> mail_;
  Matcher matcher_;
  Pool<KeptParcel> kept_;
  CompletionQueue completions_;
};

std::unique_ptr<Transport> make_loopback_transport(std::shared_ptr<LoopbackHub> hub, int rank) {
  check_peer(rank, hub->size());
  return std::make_unique<LoopbackTransport>(std::move(hub), rank);
}

LoopbackTransport::LoopbackTransport(std::shared_ptr<LoopbackHub> hub, int rank)
    : hub_(std::move(hub)), rank_(rank) {}

std::vector<std::byte> LoopbackTransport::address() const {
  std::vector<std::byte> address(sizeof(rank_));
  std::memcpy(address.data(), &rank_, sizeof(rank_));
  return address;
}

void LoopbackTransport::connect(int rank, const std::vector<std::vector<std::byte>>& addresses,
                                Listener& listener) {
  if (listener_ != nullptr) {
    throw Error(Code::InvalidState, "the loopback transport is connected already");
  }
  if (rank != rank_ || static_cast<int>(addresses.size()) != hub_->size()) {
    throw Error(Code::Mismatch, "this is rank " + std::to_string(rank_) + " of a loopback hub of " +
                                    std::to_string(hub_->size()) +
                                    ", but connect() was called for rank " + std::to_string(rank) +
                                    " of " + std::to_string(addresses.size()));
  }
  for (int r = 0; r < hub_->size(); ++r) {
    const auto& address = addresses[static_cast<std::size_t>(r)];
    int told = -1;
    if (address.size() == sizeof(told)) std::memcpy(&told, address.data(), sizeof(told));
    if (told != r) {
      throw Error(Code::Mismatch,
                  "the address of rank " + std::to_string(r) + " is not that of a loopback rank");
    }
  }
  peers_.resize(addresses.size());
  listener_ = &listener;
}

LoopbackTransport::Peer& LoopbackTransport::peer(int rank) {
  if (listener_ == nullptr) {
    throw Error(Code::InvalidState,
                "the loopback transport is not connected; call connect() first");
  }
  check_peer(rank, hub_->size());
  return peers_[static_cast<std::size_t>(rank)];
}

/// Queues the end of a request that cannot be posted (or lets it hang in a dead rank). False if it
/// can.
bool LoopbackTransport::refuse(Peer& peer, MemoryType memory, Request& request) {
  if (closing_) {
    completions_.push(request, {Code::Aborted, "the transport was closed"}, 0);
  } else if (own().killed) {
    limbo_.push_back(&request);
  } else if (!peer.alive) {
    completions_.push(request, peer.cause, 0);
  } else if (memory != MemoryType::Host) {
    completions_.push(request,
                      {Code::Unsupported,
                       "the loopback transport moves host memory only; stage the buffer there"},
                      0);
  } else {
    return false;
  }
  return true;
}

void LoopbackTransport::post_send(int rank, const Envelope& envelope, ConstBuffer buffer,
                                  Request& request) {
  if (refuse(peer(rank), buffer.memory, request)) return;
  auto parcel = std::make_shared<Parcel>();
  parcel->kind = Operation::Kind::Send;
  parcel->request = &request;
  parcel->source = rank_;
  parcel->destination = rank;
  parcel->envelope = envelope;
  parcel->data = buffer.data;
  parcel->bytes = buffer.bytes;
  parcel->position = sent_.size();
  sent_.push_back(parcel);
  RequestAccess::data(request) = static_cast<Operation*>(parcel.get());
  box(rank).put({Mail::Kind::Message, rank_, std::move(parcel)});
}

void LoopbackTransport::post_receive(int rank, const Key& key, Buffer buffer, Request& request) {
  if (refuse(peer(rank), buffer.memory, request)) return;
  while (Arrival* arrival = matcher_.post(rank, key, buffer, request)) {
    auto& kept = static_cast<KeptParcel&>(*arrival);
    const ParcelPtr parcel = std::move(kept.parcel);
    kept_.give(kept);
    if (parcel->become(Parcel::State::Claimed)) return receive(parcel, buffer, request);
  }
}

/// Copies a claimed parcel and tells its sender.
void LoopbackTransport::receive(const ParcelPtr& parcel, Buffer buffer, Request& request) {
  if (parcel->bytes > buffer.bytes) {
    completions_.push(
        request, too_long(parcel->source, parcel->envelope.key, parcel->bytes, buffer.bytes), 0);
  } else {
    if (parcel->bytes > 0) std::memmove(buffer.data, parcel->data, parcel->bytes);
    completions_.push(request, Status::ok(), parcel->bytes);
  }
  finish(parcel);
}

void LoopbackTransport::cancel(Request& request) {
  const Status cancelled(Code::Aborted, "the request was cancelled");
  if (std::erase(limbo_, &request) > 0) return completions_.push(request, cancelled, 0);
  auto* operation = static_cast<Operation*>(RequestAccess::data(request));
  if (operation == nullptr) return;
  if (matcher_.withdraw(request)) return completions_.push(request, cancelled, 0);
  auto& parcel = static_cast<Parcel&>(*operation);
  if (!parcel.become(Parcel::State::Withdrawn)) return;  // it is being read
  completions_.push(request, cancelled, 0);
  forget(parcel);
}

/// Takes a parcel off the list of those not done.
void LoopbackTransport::forget(Parcel& parcel) {
  const std::size_t position = parcel.position;
  std::swap(sent_[position], sent_.back());
  sent_[position]->position = position;
  sent_.pop_back();
}

void LoopbackTransport::drop(std::uint32_t communicator, std::uint64_t operation) {
  matcher_.release_if(
      [&](const Arrival& kept) {
        return kept.key.communicator == communicator && kept.key.operation == operation;
      },
      [&](Arrival& arrival) {
        auto& kept = static_cast<KeptParcel&>(arrival);
        if (kept.parcel->become(Parcel::State::Claimed)) finish(kept.parcel);
        kept.parcel.reset();
        kept_.give(kept);
      });
}

bool LoopbackTransport::progress() {
  const bool any = read_mail();
  return completions_.deliver() || any;
}

bool LoopbackTransport::read_mail() {
  own().take_all(mail_);
  if (mail_.empty()) return false;
  // A killed rank takes no part any more, but gets its buffers back from those who were reading
  // them.
  for (const Mail& mail : mail_)
    if (!own().killed || mail.kind == Mail::Kind::Done) handle(mail);
  mail_.clear();
  return true;
}

void LoopbackTransport::handle(const Mail& mail) {
  switch (mail.kind) {
    case Mail::Kind::Message:
      return arrive(mail.parcel);
    case Mail::Kind::Done: {
      const Peer& to = peer(mail.from);
      completions_.push(*mail.parcel->request, to.alive ? Status::ok() : to.cause,
                        to.alive ? mail.parcel->bytes : 0);
      return forget(*mail.parcel);
    }
    case Mail::Kind::Lost: {
      if (!peer(mail.from).alive) return;
      const Status cause = peer_lost(mail.from, "its connection broke");
      if (!closing_) listener_->on_peer_failure(mail.from, cause);
      return give_up(mail.from, cause);
    }
    case Mail::Kind::Left:
      return give_up(mail.from, peer_lost(mail.from, "it has left the job"));
  }
}

void LoopbackTransport::arrive(const ParcelPtr& parcel) {
  if (!peer(parcel->source).alive || own().killed) return;
  if (parcel->state.load(std::memory_order_acquire) == Parcel::State::Withdrawn) return;
  const bool drop = closing_ || listener_->on_arrival(parcel->source, parcel->envelope,
                                                      parcel->bytes) == Listener::Verdict::Drop;
  if (!peer(parcel->source).alive) return;  // the listener may have given it up
  if (drop) {
    if (parcel->become(Parcel::State::Claimed)) finish(parcel);
    return;
  }
  const Key& key = parcel->envelope.key;
  if (matcher_.has_posted(parcel->source, key)) {
    // Claimed first: a message that was withdrawn in the meantime must not use a receive up.
    if (!parcel->become(Parcel::State::Claimed)) return;
    const Matcher::Match match = matcher_.match(parcel->source, key);
    return receive(parcel, match.buffer, *match.request);
  }
  KeptParcel& kept = kept_.take();
  kept.peer = parcel->source;
  kept.key = key;
  kept.envelope = parcel->envelope;
  kept.bytes = parcel->bytes;
  kept.parcel = parcel;
  matcher_.keep(kept);
}

void LoopbackTransport::disconnect(int rank, const Status& cause) {
  if (!peer(rank).alive) return;
  give_up(rank, cause);
  if (rank != rank_) box(rank).put({Mail::Kind::Lost, rank_, nullptr});
}

void LoopbackTransport::give_up(int rank, const Status& cause) {
  Peer& lost = peer(rank);
  if (!lost.alive) return;
  lost.alive = false;
  lost.cause = cause;
  matcher_.withdraw_if([&](int from, const Key&) { return from == rank; },
                       [&](Request& request) { completions_.push(request, cause, 0); });
  refuse_kept(rank);
  withdraw_sends(rank, cause);
}

/// Forgets kept messages of one rank, or of all (-1).
void LoopbackTransport::refuse_kept(int from) {
  matcher_.release_if(
      [&](const Arrival& kept) { return from < 0 || kept.peer == from; },
      [&](Arrival& arrival) {
        auto& kept = static_cast<KeptParcel&>(arrival);
        if (closing_ && !own().killed && kept.parcel->become(Parcel::State::Claimed)) {
          finish(kept.parcel);
        }
        kept.parcel.reset();
        kept_.give(kept);
      });
}

/// Ends the sends to one rank, or to all (-1), that nobody is reading.
void LoopbackTransport::withdraw_sends(int to, const Status& cause) {
  for (std::size_t i = sent_.size(); i-- > 0;) {
    Parcel& parcel = *sent_[i];
    if (to >= 0 && parcel.destination != to) continue;
    if (!parcel.become(Parcel::State::Withdrawn)) continue;
    completions_.push(*parcel.request, cause, 0);
    forget(parcel);
  }
}

void LoopbackTransport::close(std::chrono::milliseconds deadline) noexcept {
  if (closed_) return;
  closing_ = true;
  closed_ = true;
  if (listener_ == nullptr) return;
  try {
    shut_down(std::chrono::steady_clock::now() + deadline);
  } catch (const std::exception&) {
    // Only memory can be short here.
  }
}

void LoopbackTransport::shut_down(std::chrono::steady_clock::time_point until) {
  const Status closed(Code::Aborted, "the transport was closed");
  const bool killed = own().killed;
  for (Request* request : limbo_) completions_.push(*request, closed, 0);
  limbo_.clear();
  matcher_.withdraw_if([](int, const Key&) { return true; },
                       [&](Request& request) { completions_.push(request, closed, 0); });
  // Sends to ourselves have nobody left to receive them. Before the kept messages, theirs among
  // them.
  withdraw_sends(rank_, closed);
  refuse_kept(-1);
  while (true) {
    read_mail();
    if (sent_.empty()) break;
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(until - std::chrono::steady_clock::now());
    // What remains after the deadline is being read right now, and will soon be done.
    if (left.count() <= 0 || killed) withdraw_sends(-1, closed);
    if (sent_.empty()) break;
    if (!own().arm()) continue;
    pollfd wakeup{own().descriptor, POLLIN, 0};
    (void)poll(&wakeup, 1, left.count() > 0 ? static_cast<int>(left.count()) : -1);
  }
  while (completions_.deliver()) {
  }
  if (killed) return;
  for (int other = 0; other < hub_->size(); ++other) {
    if (other != rank_) box(other).put({Mail::Kind::Left, rank_, nullptr});
  }
}

}  // namespace tersum::transport
