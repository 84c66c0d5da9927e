#include "scheduler/scheduler.hpp"

#include <compare>
#include <limits>
#include <map>
#include <string>
#include <unordered_map>

#include "tersum/error.hpp"

namespace tersum::scheduler {
namespace {

/// Place in the ready queue. `order` counts readiness, so no two slices have the same place.
struct Place {
  int priority = 0;  ///< 0 for all under Policy::Fifo
  std::uint64_t order = 0;
  friend auto operator<=>(const Place&, const Place&) = default;
};

/// A slice without a record is idle: not ready, not started by a peer.
enum class Phase { Announced, Waiting, InFlight };

struct Record {
  Phase phase = Phase::Announced;  ///< Announced: a peer has started it, it is not ready here
  Place place;
  std::size_t bytes = 0;
};

std::string name_of(SliceId slice) {
  return "slice " + std::to_string(slice);
}

}  // namespace

struct Scheduler::State {
  SchedulerOptions options;
  std::unordered_map<SliceId, Record> records;
  std::map<Place, SliceId> waiting;           ///< most urgent first
  std::map<std::uint64_t, SliceId> by_order;  ///< the same slices, longest ready first
  std::map<Place, SliceId> started_by_peer;   ///< those of them that a peer has started
  std::uint64_t next_order = 0;
  std::size_t waiting_bytes = 0;
  std::size_t in_flight_bytes = 0;

  bool credit_left() const { return in_flight_bytes < options.credit_bytes; }

  /// How many slices that became ready after the longest waiting one have been granted already:
  /// all that became ready since, without those that wait still. No waiting slice has been
  /// overtaken more often, because whatever overtook a younger one overtook this one as well.
  std::uint64_t overtaken() const { return next_order - by_order.begin()->first - waiting.size(); }

  SliceId choose_with_credit() const {
    if (overtaken() >= options.overtakes) return by_order.begin()->second;
    return waiting.begin()->second;
  }

  void grant(SliceId slice) {
    Record& record = records.at(slice);
    waiting.erase(record.place);
    by_order.erase(record.place.order);
    started_by_peer.erase(record.place);
    record.phase = Phase::InFlight;
    waiting_bytes -= record.bytes;
    in_flight_bytes += record.bytes;
  }
};

Scheduler::Scheduler(const SchedulerOptions& options) : state_(std::make_unique<State>()) {
  if (options.credit_bytes == 0) {
    throw Error(Code::InvalidArgument,
                "credit_bytes is 0, so nothing could be sent; give at least 1");
  }
  state_->options = options;
}

Scheduler::~Scheduler() = default;
Scheduler::Scheduler(Scheduler&&) noexcept = default;
Scheduler& Scheduler::operator=(Scheduler&&) noexcept = default;

void Scheduler::on_ready(SliceId slice, int priority, std::size_t bytes, Time) {
  State& s = *state_;
  const auto found = s.records.find(slice);
  const bool announced = found != s.records.end();
  if (announced && found->second.phase != Phase::Announced) {
    throw Error(Code::InvalidState,
                name_of(slice) + " became ready again while it is " +
                    (found->second.phase == Phase::Waiting ? "waiting" : "in flight") +
                    "; it must be done before its next round");
  }
  if (bytes > std::numeric_limits<std::size_t>::max() - s.waiting_bytes - s.in_flight_bytes) {
    throw Error(Code::InvalidArgument,
                name_of(slice) + " has " + std::to_string(bytes) +
                    " bytes, more than can be counted with those that wait or are in flight");
  }
  const Place place{s.options.policy == Policy::Fifo ? 0 : priority, s.next_order++};
  s.records[slice] = {Phase::Waiting, place, bytes};
  s.waiting.emplace(place, slice);
  s.by_order.emplace(place.order, slice);
  if (announced) s.started_by_peer.emplace(place, slice);
  s.waiting_bytes += bytes;
}

void Scheduler::on_arrival(SliceId slice) {
  State& s = *state_;
  const auto [found, idle] = s.records.try_emplace(slice);
  if (!idle && found->second.phase == Phase::Waiting) {
    s.started_by_peer.emplace(found->second.place, slice);
  }
}

std::optional<Grant> Scheduler::next(Time) {
  State& s = *state_;
  Grant grant;
  if (s.waiting.empty()) return std::nullopt;
  if (s.credit_left()) {
    grant = {s.choose_with_credit(), false};
  } else if (!s.started_by_peer.empty()) {
    grant = {s.started_by_peer.begin()->second, true};
  } else {
    return std::nullopt;
  }
  s.grant(grant.slice);
  return grant;
}

void Scheduler::on_done(SliceId slice) {
  State& s = *state_;
  const auto found = s.records.find(slice);
  if (found == s.records.end() || found->second.phase != Phase::InFlight) {
    throw Error(Code::InvalidState, name_of(slice) +
                                        " is reported as done but is not in flight; report each "
                                        "granted slice once");
  }
  s.in_flight_bytes -= found->second.bytes;
  s.records.erase(found);
}

void Scheduler::reset() {
  const SchedulerOptions options = state_->options;
  *state_ = State{};
  state_->options = options;
}

std::size_t Scheduler::in_flight_bytes() const noexcept {
  return state_->in_flight_bytes;
}
std::size_t Scheduler::waiting_count() const noexcept {
  return state_->waiting.size();
}

Policy parse_policy(std::string_view text) {
  if (text == "priority") return Policy::Priority;
  if (text == "fifo") return Policy::Fifo;
  throw Error(Code::InvalidArgument,
              "unknown policy '" + std::string(text) + "'; choose 'priority' or 'fifo'");
}

}  // namespace tersum::scheduler
