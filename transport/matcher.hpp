// What every transport shares: posted receives and kept arrivals, met by (peer, Key), and the queue
// of completions that progress() hands out.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "transport/transport.hpp"

namespace tersum::transport {

/// Something that waits under a (peer, Key). Lives in at most one MatchTable, which does not own
/// it.
struct MatchEntry {
  int peer = -1;
  Key key;
  MatchEntry* bucket_next = nullptr;
  MatchEntry* bucket_previous = nullptr;
  MatchEntry* next = nullptr;  ///< of all entries, oldest first
  MatchEntry* previous = nullptr;
};

/// First-in-first-out queues of entries by (peer, Key): an intrusive hash table. Allocates only
/// when it grows.
class MatchTable {
 public:
  MatchTable();

  void push(MatchEntry& entry);
  void remove(MatchEntry& entry) noexcept;
  /// The oldest entry with that peer and key, or null.
  MatchEntry* find(int peer, const Key& key) const noexcept;
  MatchEntry* first() const noexcept { return first_; }
  bool empty() const noexcept { return size_ == 0; }
  std::size_t size() const noexcept { return size_; }

 private:
  struct Bucket {
    MatchEntry* head = nullptr;
    MatchEntry* tail = nullptr;
  };
  std::size_t index(int peer, const Key& key) const noexcept;
  void link(MatchEntry& entry) noexcept;
  void grow();

  std::vector<Bucket> buckets_;  // a power of two of them
  MatchEntry* first_ = nullptr;
  MatchEntry* last_ = nullptr;
  std::size_t size_ = 0;
};

/// Objects that are used again instead of freed, in the state in which they came back. The pool
/// owns all that it made; those still taken when it dies die with it.
template <class T>
class Pool {
 public:
  T& take() {
    if (free_.empty()) {
      free_.reserve(all_.size() + 1);  // so that give() cannot throw
      all_.push_back(std::make_unique<T>());
      return *all_.back();
    }
    T& object = *free_.back();
    free_.pop_back();
    return object;
  }
  /// `object` must come from take().
  void give(T& object) noexcept { free_.push_back(&object); }
  std::size_t taken() const noexcept { return all_.size() - free_.size(); }

 private:
  std::vector<std::unique_ptr<T>> all_;
  std::vector<T*> free_;
};

/// What RequestAccess::data() of a pending request points to; null when nothing is pending or the
/// completion is queued.
struct Operation {
  enum class Kind { PostedReceive, Send, Receive, SelfSend };
  Kind kind = Kind::PostedReceive;
  Request* request = nullptr;
};

/// A receive that waits for its message.
struct PostedReceive : Operation, MatchEntry {
  Buffer buffer;
};

/// A message that waits for its receive. Transports derive from it to say where the bytes are.
struct Arrival : MatchEntry {
  Envelope envelope;
  std::size_t bytes = 0;
};

/// Completions that wait for the end of progress(): Request::on_complete() is never called from
/// inside a posting call.
class CompletionQueue {
 public:
  void push(Request& request, Status status, std::size_t bytes);
  /// Calls back everything that was queued before the call. True if there was anything.
  bool deliver();
  bool empty() const noexcept { return queue_.empty(); }

 private:
  struct Completion {
    Request* request;
    Status status;
    std::size_t bytes;
  };
  std::vector<Completion> queue_;
  std::vector<Completion> batch_;
};

/// Posted receives × kept arrivals. At any time no posted receive matches a kept arrival. Not
/// thread-safe: it belongs to its transport's thread.
class Matcher {
 public:
  /// The oldest kept arrival for a new receive, removed; null if there is none, and then the
  /// receive is posted.
  Arrival* post(int peer, const Key& key, Buffer buffer, Request& request);

  /// What match() found.
  struct Match {
    Request* request = nullptr;  ///< null: nothing is posted
    Buffer buffer;
  };
  /// The oldest receive posted for (peer, key), removed.
  Match match(int peer, const Key& key);

  bool has_posted(int peer, const Key& key) const noexcept {
    return posted_.find(peer, key) != nullptr;
  }

  /// Keeps an arrival that match() found nothing for. The caller owns it.
  void keep(Arrival& arrival) { kept_.push(arrival); }

  /// Takes back one posted receive. False if the request is not one.
  bool withdraw(Request& request);

  /// Withdraws every posted receive that `which(int peer, const Key&)` picks, then calls
  /// `then(Request&)` for each.
  template <class Which, class Then>
  void withdraw_if(Which which, Then then) {
    for (MatchEntry* entry = posted_.first(); entry != nullptr;) {
      auto& receive = static_cast<PostedReceive&>(*entry);
      entry = entry->next;
      if (!which(receive.peer, receive.key)) continue;
      Request& request = *receive.request;
      forget(receive);
      then(request);
    }
  }

  /// Removes every kept arrival that `which(const Arrival&)` picks, then calls `then(Arrival&)`.
  template <class Which, class Then>
  void release_if(Which which, Then then) {
    for (MatchEntry* entry = kept_.first(); entry != nullptr;) {
      auto& arrival = static_cast<Arrival&>(*entry);
      entry = entry->next;
      if (!which(static_cast<const Arrival&>(arrival))) continue;
      kept_.remove(arrival);
      then(arrival);
    }
  }

  std::size_t posted() const noexcept { return posted_.size(); }
  std::size_t kept() const noexcept { return kept_.size(); }

 private:
  void forget(PostedReceive& receive) noexcept;

  MatchTable posted_;
  MatchTable kept_;
  Pool<PostedReceive> pool_;
};

/// How a receive ends whose message is longer than its buffer.
Status too_long(int peer, const Key& key, std::size_t message_bytes, std::size_t buffer_bytes);

/// "rank 3 is lost: <why>", with the rank set.
Status peer_lost(int peer, const std::string& why);

/// Throws Error InvalidArgument unless 0 <= peer < size.
void check_peer(int peer, int size);

}  // namespace tersum::transport
