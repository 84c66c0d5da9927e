#include "transport/faulty_transport.hpp"

#include <algorithm>
#include <deque>
#include <random>
#include <set>
#include <utility>

#include "transport/matcher.hpp"

namespace tersum::transport {

class FaultyTransport final : public Transport, private Listener {
 public:
  FaultyTransport(std::unique_ptr<Transport> inner, FaultPlan plan)
      : inner_(std::move(inner)), plan_(std::move(plan)), random_(plan_.seed) {}
  ~FaultyTransport() override { close(std::chrono::milliseconds(0)); }

  std::string_view name() const noexcept override { return "faulty"; }
  Capabilities capabilities() const noexcept override { return inner_->capabilities(); }
  std::vector<std::byte> address() const override { return inner_->address(); }
  void connect(int rank, const std::vector<std::vector<std::byte>>& addresses,
               Listener& listener) override {
    listener_ = &listener;
    sent_.assign(addresses.size(), 0);
    inner_->connect(rank, addresses, *this);
  }

  void* register_memory(const Buffer& memory) override { return inner_->register_memory(memory); }
  std::string route(int peer) override { return inner_->route(peer); }
  void post_send(int peer, const Envelope& envelope, ConstBuffer buffer, Request& request) override;
  void post_receive(int peer, const Key& key, Buffer buffer, Request& request) override {
    inner_->post_receive(peer, key, buffer, request);
  }
  void cancel(Request& request) override;
  void drop(std::uint32_t communicator, std::uint64_t operation) override {
    inner_->drop(communicator, operation);
  }
  bool progress() override;
  int descriptor() const override { return inner_->descriptor(); }
  bool arm() override;
  void disconnect(int peer, const Status& cause) override;
  void close(std::chrono::milliseconds deadline) noexcept override;

 private:
  /// A request that the inner transport does not know of (yet).
  struct Held {
    int peer = -1;
    Envelope envelope;
    ConstBuffer buffer;
    Request* request = nullptr;
    std::uint64_t due = 0;  // the call of progress() that lets it go
  };

  Verdict on_arrival(int peer, const Envelope& envelope, std::size_t bytes) override {
    return silent_ ? Verdict::Drop : listener_->on_arrival(peer, envelope, bytes);
  }
  void on_peer_failure(int peer, const Status& status) override {
    if (!given_up_.insert(peer).second) return;
    listener_->on_peer_failure(peer, status);
    end_held(peer, status);
  }
  std::uint64_t due_time(int peer, const Key& key);
  bool dropped(int peer, std::uint64_t message) const;
  bool release_due();
  bool fail_due();
  void end_held(int peer, const Status& status);

  std::unique_ptr<Transport> inner_;
  FaultPlan plan_;
  std::mt19937_64 random_;
  Listener* listener_ = nullptr;
  std::uint64_t calls_ = 0;          // of progress()
  std::uint64_t messages_ = 0;       // posted, to all peers
  std::vector<std::uint64_t> sent_;  // posted, by peer
  bool silent_ = false;
  bool closed_ = false;
  std::deque<Held> held_;        // delayed sends, oldest first
  std::vector<Held> swallowed_;  // posted after this rank was cut off
  std::set<int> given_up_;
  CompletionQueue completions_;
};

std::unique_ptr<Transport> make_faulty_transport(std::unique_ptr<Transport> inner, FaultPlan plan) {
  return std::make_unique<FaultyTransport>(std::move(inner), std::move(plan));
}

void FaultyTransport::post_send(int peer, const Envelope& envelope, ConstBuffer buffer,
                                Request& request) {
  check_peer(peer, static_cast<int>(sent_.size()));
  const std::uint64_t message = ++sent_[static_cast<std::size_t>(peer)];
  if (++messages_ == plan_.silent_from) silent_ = true;
  if (silent_) {
    swallowed_.push_back({peer, envelope, buffer, &request, 0});
  } else if (dropped(peer, message)) {
    completions_.push(request, Status::ok(), buffer.bytes);
  } else if (plan_.max_delay > 0 && !given_up_.contains(peer)) {
    held_.push_back({peer, envelope, buffer, &request, due_time(peer, envelope.key)});
  } else {
    inner_->post_send(peer, envelope, buffer, request);
  }
}

bool FaultyTransport::dropped(int peer, std::uint64_t message) const {
  return std::any_of(plan_.drops.begin(), plan_.drops.end(), [&](const FaultPlan::Drop& drop) {
    return drop.peer == peer && drop.message == message;
  });
}

/// When a message may go: after its own delay, and not before those that it must not overtake.
std::uint64_t FaultyTransport::due_time(int peer, const Key& key) {
  std::uint64_t due = calls_ + random_() % (static_cast<std::uint64_t>(plan_.max_delay) + 1);
  for (const Held& other : held_) {
    const bool ordered = other.peer == peer && (!plan_.reorder || other.envelope.key == key);
    if (ordered) due = std::max(due, other.due);
  }
  return due;
}

void FaultyTransport::cancel(Request& request) {
  const auto same = [&](const Held& held) { return held.request == &request; };
  if (std::erase_if(held_, same) + std::erase_if(swallowed_, same) == 0) {
    return inner_->cancel(request);
  }
  completions_.push(request, {Code::Aborted, "the request was cancelled"}, 0);
}

bool FaultyTransport::progress() {
  ++calls_;
  bool any = fail_due();
  any |= release_due();
  any |= inner_->progress();
  any |= completions_.deliver();
  return any;
}

/// Hands due messages to the inner transport. With `reorder` they go by their due time, otherwise,
/// per peer, as they came.
bool FaultyTransport::release_due() {
  std::vector<Held> due;
  for (const Held& held : held_) {
    if (held.due <= calls_) due.push_back(held);
  }
  if (due.empty()) return false;
  std::erase_if(held_, [&](const Held& held) { return held.due <= calls_; });
  std::stable_sort(due.begin(), due.end(),
                   [](const Held& a, const Held& b) { return a.due < b.due; });
  for (const Held& held : due) {
    inner_->post_send(held.peer, held.envelope, held.buffer, *held.request);
  }
  return true;
}

bool FaultyTransport::fail_due() {
  bool any = false;
  for (const FaultPlan::Failure& failure : plan_.failures) {
    if (failure.progress_calls != calls_ || given_up_.contains(failure.peer)) continue;
    const Status status = peer_lost(failure.peer, "its connection broke");
    on_peer_failure(failure.peer, status);
    inner_->disconnect(failure.peer, status);
    any = true;
  }
  return any;
}

void FaultyTransport::end_held(int peer, const Status& status) {
  const auto end = [&](const Held& held) {
    if (held.peer != peer) return false;
    completions_.push(*held.request, status, 0);
    return true;
  };
  std::erase_if(held_, end);
  std::erase_if(swallowed_, end);
}

bool FaultyTransport::arm() {
  if (!completions_.empty()) return false;
  // Delays and failures are counted in calls of progress(), so these must go on.
  const bool more_failures =
      std::any_of(plan_.failures.begin(), plan_.failures.end(),
                  [&](const FaultPlan::Failure& f) { return f.progress_calls > calls_; });
  return held_.empty() && !more_failures && inner_->arm();
}

void FaultyTransport::disconnect(int peer, const Status& cause) {
  check_peer(peer, static_cast<int>(sent_.size()));
  given_up_.insert(peer);
  end_held(peer, cause);
  inner_->disconnect(peer, cause);
}

void FaultyTransport::close(std::chrono::milliseconds deadline) noexcept {
  if (std::exchange(closed_, true)) return;
  try {
    // What is merely delayed was sent, and is flushed.
    for (const Held& held : std::exchange(held_, {})) {
      inner_->post_send(held.peer, held.envelope, held.buffer, *held.request);
    }
    for (const Held& held : std::exchange(swallowed_, {})) {
      completions_.push(*held.request, {Code::Aborted, "the transport was closed"}, 0);
    }
    inner_->close(deadline);
    while (completions_.deliver()) {
    }
  } catch (const std::exception&) {
    // Only memory can be short here; the inner transport's destructor closes it.
  }
}

}  // namespace tersum::transport
