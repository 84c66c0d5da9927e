#include "transport/matcher.hpp"

#include <string>

namespace tersum::transport {

namespace {
constexpr std::size_t kFirstBuckets = 64;
}

MatchTable::MatchTable() : buckets_(kFirstBuckets) {}

std::size_t MatchTable::index(int peer, const Key& key) const noexcept {
  const std::size_t hash =
      std::hash<Key>{}(key) ^ (static_cast<std::size_t>(peer) * 0xd6e8feb86659fd93ull);
  return (hash ^ (hash >> 32)) & (buckets_.size() - 1);
}

void MatchTable::link(MatchEntry& entry) noexcept {
  Bucket& bucket = buckets_[index(entry.peer, entry.key)];
  entry.bucket_next = nullptr;
  entry.bucket_previous = bucket.tail;
  (bucket.tail == nullptr ? bucket.head : bucket.tail->bucket_next) = &entry;
  bucket.tail = &entry;
}

void MatchTable::push(MatchEntry& entry) {
  if (size_ == buckets_.size()) grow();
  link(entry);
  entry.next = nullptr;
  entry.previous = last_;
  (last_ == nullptr ? first_ : last_->next) = &entry;
  last_ = &entry;
  ++size_;
}

void MatchTable::remove(MatchEntry& entry) noexcept {
  Bucket& bucket = buckets_[index(entry.peer, entry.key)];
  (entry.bucket_previous == nullptr ? bucket.head : entry.bucket_previous->bucket_next) =
      entry.bucket_next;
  (entry.bucket_next == nullptr ? bucket.tail : entry.bucket_next->bucket_previous) =
      entry.bucket_previous;
  (entry.previous == nullptr ? first_ : entry.previous->next) = entry.next;
  (entry.next == nullptr ? last_ : entry.next->previous) = entry.previous;
  --size_;
}

MatchEntry* MatchTable::find(int peer, const Key& key) const noexcept {
  MatchEntry* entry = buckets_[index(peer, key)].head;
  while (entry != nullptr && (entry->peer != peer || !(entry->key == key))) {
    entry = entry->bucket_next;
  }
  return entry;
}

void MatchTable::grow() {
  buckets_.assign(buckets_.size() * 2, Bucket{});
  // From the oldest on, so that queues keep their order.
  for (MatchEntry* entry = first_; entry != nullptr; entry = entry->next) link(*entry);
}

void CompletionQueue::push(Request& request, Status status, std::size_t bytes) {
  RequestAccess::data(request) = nullptr;
  queue_.push_back({&request, std::move(status), bytes});
}

bool CompletionQueue::deliver() {
  if (queue_.empty()) return false;
  batch_.swap(queue_);
  for (const Completion& completion : batch_) {
    completion.request->on_complete(completion.status, completion.bytes);
  }
  batch_.clear();
  return true;
}

Arrival* Matcher::post(int peer, const Key& key, Buffer buffer, Request& request) {
  if (MatchEntry* entry = kept_.find(peer, key)) {
    kept_.remove(*entry);
    return static_cast<Arrival*>(entry);
  }
  PostedReceive& receive = pool_.take();
  receive.kind = Operation::Kind::PostedReceive;
  receive.request = &request;
  receive.peer = peer;
  receive.key = key;
  receive.buffer = buffer;
  posted_.push(receive);
  RequestAccess::data(request) = static_cast<Operation*>(&receive);
  return nullptr;
}

Matcher::Match Matcher::match(int peer, const Key& key) {
  MatchEntry* entry = posted_.find(peer, key);
  if (entry == nullptr) return {};
  auto& receive = static_cast<PostedReceive&>(*entry);
  const Match found{receive.request, receive.buffer};
  forget(receive);
  return found;
}

bool Matcher::withdraw(Request& request) {
  auto* operation = static_cast<Operation*>(RequestAccess::data(request));
  if (operation == nullptr || operation->kind != Operation::Kind::PostedReceive) return false;
  forget(static_cast<PostedReceive&>(*operation));
  return true;
}

void Matcher::forget(PostedReceive& receive) noexcept {
  RequestAccess::data(*receive.request) = nullptr;
  posted_.remove(receive);
  pool_.give(receive);
}

Status too_long(int peer, const Key& key, std::size_t message_bytes, std::size_t buffer_bytes) {
  return {Code::Mismatch,
          "rank " + std::to_string(peer) + " sent " + std::to_string(message_bytes) +
              " bytes for operation " + std::to_string(key.operation) + ", slice " +
              std::to_string(key.slice) + ", hop " + std::to_string(key.hop) + " of communicator " +
              std::to_string(key.communicator) + ", but the receive has room for " +
              std::to_string(buffer_bytes) + "; post a buffer as long as the message"};
}

Status peer_lost(int peer, const std::string& why) {
  const std::string rank = std::to_string(peer);
  return {Code::PeerLost, "rank " + rank + " is lost: " + why, {}, peer};
}

void check_peer(int peer, int size) {
  if (peer >= 0 && peer < size) return;
  throw Error(Code::InvalidArgument, "peer " + std::to_string(peer) +
                                         " is not a rank of this job (0 to " +
                                         std::to_string(size - 1) + ")");
}

}  // namespace tersum::transport
