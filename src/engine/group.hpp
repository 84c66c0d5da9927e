// Group: the ranks of one communicator as the engine sees them.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "src/engine/signature.hpp"
#include "tersum/error.hpp"
#include "transport/transport.hpp"

namespace tersum::runtime {

/// Operation numbers: collectives count up from 0; send/receive carry the top bit and count per
/// pair.
inline constexpr std::uint64_t kPointToPoint = std::uint64_t{1} << 63;
inline constexpr std::uint64_t kWholeGroup =
    ~std::uint64_t{0};  ///< a failure notice for the communicator itself
inline constexpr std::uint64_t kFailureHop = ~std::uint64_t{0};  ///< hop of failure notices

/// Members, failure and bookkeeping of one communicator. Used on the engine's thread, but for what
/// says otherwise.
class Group {
 public:
  Group(std::uint32_t id, int rank, std::vector<int> members)
      : id_(id), rank_(rank), members_(std::move(members)) {
    for (std::size_t i = 0; i < members_.size(); ++i) index_[members_[i]] = static_cast<int>(i);
  }
  virtual ~Group() = default;

  std::uint32_t id() const noexcept { return id_; }
  int rank() const noexcept { return rank_; }
  int size() const noexcept { return static_cast<int>(members_.size()); }
  int world(int rank) const { return members_[static_cast<std::size_t>(rank)]; }
  int world() const { return world(rank_); }
  /// Rank in this group of a world rank; -1 if it is no member.
  int index_of(int world_rank) const {
    auto it = index_.find(world_rank);
    return it == index_.end() ? -1 : it->second;
  }
  const std::vector<int>& members() const noexcept { return members_; }

  /// Why this communicator has ended, or Ok. Any thread.
  Status failure() const {
    if (!failed_.load(std::memory_order_acquire)) return {};
    std::lock_guard lock(mutex_);
    return failure_;
  }
  /// The first failure stays. Returns true if this was it.
  bool set_failure(const Status& status) {
    std::function<void()> told;
    {
      std::lock_guard lock(mutex_);
      if (!failure_.is_ok()) return false;
      failure_ = status;
      failed_.store(true, std::memory_order_release);
      told = on_failure_;
    }
    if (told) told();
    return true;
  }
  /// Calls `function` when the communicator ends: at once if it has, else from the engine's thread.
  /// Any thread; the last one counts.
  void on_failure(std::function<void()> function) {
    {
      std::lock_guard lock(mutex_);
      on_failure_ = function;
      if (failure_.is_ok()) return;
    }
    function();
  }

  /// True if both keys name parts of one operation that fail together.
  virtual bool fail_together(const transport::Key& a, const transport::Key& b) const {
    const bool pair = (a.operation & kPointToPoint) != 0;  // its slice says who talks to whom
    return a.operation == b.operation && (!pair || a.slice == b.slice);
  }
  /// Who has a part in the operation, by group rank; the default is everybody, or the two ends of a
  /// send.
  std::vector<int> participants(const transport::Key& key) const {
    if (key.operation != kWholeGroup && (key.operation & kPointToPoint))
      return {static_cast<int>(key.slice >> 16), static_cast<int>(key.slice & 0xffff)};
    std::vector<int> all(members_.size());
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int>(i);
    return all;
  }

  /// True if the operation runs here or has ended here.
  virtual bool has_started(const transport::Key& key) const {
    if (!(key.operation & kPointToPoint)) return key.operation < next_operation;
    const int sender = static_cast<int>(key.slice >> 16),
              receiver = static_cast<int>(key.slice & 0xffff);
    const auto& next = sender == rank_ ? next_send : next_receive;
    auto it = next.find(sender == rank_ ? receiver : sender);
    return it != next.end() && (key.operation & ~kPointToPoint) < it->second;
  }
  /// A peer has started an operation that has not started here.
  virtual void on_early(const transport::Key& /*key*/) {}
  /// `key` has failed here or on another rank (operation kWholeGroup: everything has).
  virtual void on_operation_failed(const transport::Key& /*key*/, const Status& /*status*/) {}

  /// Bytes sent here count as those of `whole`, too, of which this is a part. Before the first
  /// operation.
  void count_for(std::shared_ptr<Group> whole) { whole_ = std::move(whole); }
  void count_sent(std::uint64_t bytes) noexcept {
    sent_bytes.fetch_add(bytes, std::memory_order_relaxed);
    if (whole_) whole_->count_sent(bytes);
  }

  std::uint64_t next_operation = 0;
  std::unordered_map<int, std::uint64_t> next_send, next_receive;  ///< per member
  std::unordered_map<transport::Key, Status> doomed;  ///< failed elsewhere before they started here
  std::atomic<std::uint64_t> sent_bytes{0};           ///< readable from any thread

 private:
  const std::uint32_t id_;
  const int rank_;
  const std::vector<int> members_;
  std::unordered_map<int, int> index_;
  std::shared_ptr<Group> whole_;
  mutable std::mutex mutex_;
  Status failure_;
  std::atomic<bool> failed_{false};  // that there is one: calls ask often
  std::function<void()> on_failure_;
};

}  // namespace tersum::runtime
