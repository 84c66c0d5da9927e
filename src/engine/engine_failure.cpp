#include "src/engine/engine.hpp"

#include <boost/asio/post.hpp>

#include "src/engine/notice.hpp"

namespace tersum::runtime {
namespace {

constexpr auto kTick = std::chrono::milliseconds(20);  // resolution of deadlines
constexpr auto kVerdictGrace =
    std::chrono::milliseconds(150);  // for rank 0 to name the first cause
// For peers to let go of a failed operation's buffers; a failed job has no time for that.
constexpr auto kDrainGrace = std::chrono::seconds(1);
constexpr auto kLastDrainGrace = std::chrono::milliseconds(100);
constexpr auto kLeaveGrace = std::chrono::seconds(2);  // for data of a rank that has left to arrive

}  // namespace

// ---- failures ----

void Engine::fail_operation(Group& group, const transport::Key& key, const Status& status,
                            bool tell_others) {
  std::vector<std::shared_ptr<Operation>> concerned;
  for (const auto& [other, operation] : active_)
    if (other.communicator == group.id() && group.fail_together(other, key))
      concerned.push_back(operation);
  if (tell_others) tell(group, key, status);
  for (auto& operation : concerned) operation->fail(status);
  if (concerned.empty() && !group.has_started(key)) group.doomed.emplace(key, status);
  group.on_operation_failed(key, status);
}

void Engine::forget(std::uint32_t group, std::uint64_t number) {
  if (number & kPointToPoint) return;  // other pairs have messages of the same number
  transport_->drop(group, number);
  std::erase_if(early_, [&](const auto& entry) {
    return entry.first.communicator == group && entry.first.operation == number;
  });
  std::erase_if(notices_in_, [&](const auto& reader) {  // these have been dropped as well
    const auto& key = reader->envelope.key;
    return !reader->posted && key.communicator == group && key.operation == number;
  });
}

/// The messages of one operation. Sends and receives of all pairs share their numbers, so what has
/// arrived for one of them cannot be released by number; it is one message at most.
void Engine::forget(const transport::Key& key) {
  if (key.operation & kPointToPoint)
    early_.erase(key);
  else
    forget(key.communicator, key.operation);
}

void Engine::fail_group(Group& group, const Status& status, bool tell_others) {
  if (!group.set_failure(status)) return;
  std::vector<std::shared_ptr<Operation>> concerned;
  for (const auto& [key, operation] : active_)
    if (key.communicator == group.id()) concerned.push_back(operation);
  const transport::Key everything{group.id(), 0, kWholeGroup, 0};
  if (tell_others) tell(group, everything, status);
  for (auto& operation : concerned) {
    if (operation->awaits_verdict_) {
      operation->awaits_verdict_ = false;
      operation->cause_ =
          status.at(operation->name() + ", " + std::string(to_string(operation->stage())));
      operation->finish_if_quiet();
    } else {
      operation->fail(status);
    }
  }
  group.on_operation_failed(everything, status);
}

void Engine::fail_everything(const Status& cause) {
  if (!job_failure_.is_ok()) return;
  job_failure_ = cause;
  logger_.debug("the job has failed: " + cause.to_string());
  std::vector<std::shared_ptr<Group>> groups;
  for (const auto& [id, group] : groups_) groups.push_back(group);
  for (auto& group : groups) fail_group(*group, cause, control_ == nullptr);
  if (cause.code() == Code::PeerLost && cause.rank() >= 0 && cause.rank() != rank_)
    transport_->disconnect(cause.rank(), cause);
}

/// A body ended with an error of its own, not with one that it was told.
void Engine::on_body_failed(Operation& operation) {
  const Status cause = operation.cause_;
  if (cause.code() == Code::PeerLost) {
    operation.awaits_verdict_ = job_failure_.is_ok();
    lose_peer(cause);
    return;
  }
  fail_operation(operation.group(), operation.key_, cause, true);
}

/// The transport says that a peer is gone. Rank 0 hears of it and names the first cause, the same
/// for all ranks; if it does not answer, our own view stands.
void Engine::lose_peer(const Status& cause) {
  if (!job_failure_.is_ok() || !suspicion_.is_ok()) return;
  suspicion_ = cause;
  if (!control_) {
    boost::asio::post(*context_, [this] { fail_everything(suspicion_); });
    return;
  }
  control_->report(Status(cause.code(), cause.message(), {}, cause.rank()));
  grace_.expires_after(kVerdictGrace);
  grace_.async_wait([this](const boost::system::error_code& error) {
    if (!error) fail_everything(suspicion_);
  });
}

void Engine::on_peer_failure(int /*peer*/, const Status& status) {
  lose_peer(status);
}

void Engine::on_failure(const Status& cause) {
  fail_everything(cause);
}

void Engine::on_leave(int rank) {
  left_.emplace(rank, Clock::now());
  schedule_tick();
}

void Engine::mismatch(Operation& operation, int peer, const Signature& theirs) {
  const int mine = operation.group().rank();
  const std::string text = mine < peer
                               ? describe_difference(mine, operation.signature_, peer, theirs)
                               : describe_difference(peer, theirs, mine, operation.signature_);
  fail_operation(operation.group(), operation.key_, Status(Code::Mismatch, text), true);
}

// ---- what arrives ----

transport::Listener::Verdict Engine::on_arrival(int peer, const transport::Envelope& envelope,
                                                std::size_t bytes) {
  transport::Key key = envelope.key;
  if (key.hop == kFailureHop) {
    if (bytes > kLargestNotice) return Verdict::Drop;
    notices_in_.push_back(std::make_unique<NoticeReader>(peer, envelope, bytes));
    return Verdict::Keep;
  }
  key.hop = 0;
  if (closed_groups_.contains(key.communicator)) return Verdict::Drop;
  const Signature theirs = Signature::from_note(envelope.note);
  auto group = groups_.find(key.communicator);
  const int member = group == groups_.end() ? -1 : group->second->index_of(peer);
  if (group != groups_.end() && member < 0) return Verdict::Drop;
  if (auto it = active_.find(key); it != active_.end()) {
    if (!it->second->cause_.is_ok()) return Verdict::Drop;  // its sender waits for us to let go
    if (theirs == it->second->signature_) return Verdict::Keep;
    auto operation = it->second;  // fail it after this callback, outside the transport
    boost::asio::post(*context_,
                      [this, operation, member, theirs] { mismatch(*operation, member, theirs); });
    return Verdict::Drop;
  }
  if (group != groups_.end()) {
    if (group->second->has_started(key)) return Verdict::Drop;  // it has ended here
    group->second->on_early(key);
  }
  early_[key].push_back({peer, theirs});
  return Verdict::Keep;
}

void Engine::read_notices() {
  for (auto& reader : notices_in_)
    if (!reader->posted) {
      reader->posted = true;
      transport_->post_receive(
          reader->peer, reader->envelope.key,
          {reader->text.data(), reader->text.size(), MemoryType::Host, nullptr}, *reader);
    }
  for (std::size_t i = 0; i < notices_in_.size();) {
    if (!notices_in_[i]->complete) {
      ++i;
      continue;
    }
    auto reader = std::move(notices_in_[i]);
    notices_in_.erase(notices_in_.begin() + static_cast<std::ptrdiff_t>(i));
    if (reader->good) apply_notice(reader->envelope.key, reader->status());
  }
}

void Engine::apply_notice(const transport::Key& key, const Status& status) {
  auto it = groups_.find(key.communicator);
  if (it == groups_.end()) {
    if (!closed_groups_.contains(key.communicator)) early_notices_.emplace_back(key, status);
    return;
  }
  auto group = it->second;
  if (key.operation == kWholeGroup) {
    fail_group(*group, status, false);
  } else {
    transport::Key plain = key;
    plain.hop = 0;
    fail_operation(*group, plain, status, false);
  }
}

void Engine::tell(const Group& group, const transport::Key& key, const Status& status) {
  for (int member : group.participants(key)) {
    if (member == group.rank()) continue;
    auto notice = std::make_unique<Notice>(key, status);
    transport_->post_send(group.world(member), notice->envelope, notice->buffer(), *notice);
    notices_out_.push_back(std::move(notice));
  }
}

// ---- time ----

void Engine::schedule_tick() {
  if (ticking_ || (active_.empty() && left_.empty())) return;
  ticking_ = true;
  ticker_.expires_after(kTick);
  ticker_.async_wait([this](const boost::system::error_code& error) {
    ticking_ = false;
    if (!error) tick();
  });
}

void Engine::tick() {
  const auto now = Clock::now();
  std::vector<std::shared_ptr<Operation>> operations;
  for (const auto& [key, operation] : active_) operations.push_back(operation);
  for (auto& operation : operations) {
    Group& group = operation->group();
    if (!operation->cause_.is_ok()) {
      const Clock::duration grace =
          job_failure_.is_ok() ? Clock::duration(kDrainGrace) : kLastDrainGrace;
      if (now - operation->failed_at_ > grace && !operation->awaits_verdict_)
        for (const TransferRequest* request : std::vector(operation->in_flight_))
          transport_->disconnect(group.world(request->peer), operation->cause_);
      continue;
    }
    if (now > operation->deadline_) {
      const std::string missing = operation->missing_ranks();
      const auto limit = std::chrono::duration_cast<std::chrono::milliseconds>(
          operation->deadline_ - operation->started_);
      const std::string text = operation->name() + " did not end within " +
                               std::to_string(limit.count()) + " ms" +
                               (missing.empty() ? "" : "; it waits for rank " + missing);
      fail_group(group, Status(Code::Timeout, text, std::string(to_string(operation->stage()))),
                 true);
      continue;
    }
    for (const auto& [world, since] : left_)
      if (group.index_of(world) >= 0 && now - std::max(since, operation->started_) > kLeaveGrace) {
        fail_group(group,
                   Status(Code::PeerLost, "rank " + std::to_string(world) + " has left the job", {},
                          world),
                   true);
        break;
      }
  }
  if (!active_.empty()) schedule_tick();
}

}  // namespace tersum::runtime
