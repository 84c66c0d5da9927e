#include "exchange_simulation.hpp"

#include <queue>
#include <random>
#include <tuple>
#include <vector>

#include "scheduler/scheduler.hpp"

namespace tersum::scheduler::testing {
namespace {

enum class Kind { Ready, Message, Done };

struct Event {
  std::int64_t time;
  std::uint64_t number;  // breaks ties, so that a seed always gives the same run
  Kind kind;
  int rank;
  SliceId slice;
  int round;
  int origin;  // Message: whose start it tells of
  bool operator>(const Event& other) const {
    return std::tie(time, number) > std::tie(other.time, other.number);
  }
};

/// One slice on one rank.
struct SliceState {
  int round = 0;
  bool started = false;
  std::vector<std::vector<int>> heard;  ///< [round]: the peers whose start is known here
};

class Simulation {
 public:
  explicit Simulation(const ExchangeScenario& scenario)
      : scenario_(scenario), random_(scenario.seed), bytes_(scenario.slices) {
    std::size_t total = 0;
    for (std::size_t& bytes : bytes_) total += bytes = pick(1, 100);
    SchedulerOptions options;
    options.credit_bytes = pick(0, 1) == 0 ? pick(1, 100) : pick(1, total + 10);
    options.overtakes = pick(0, 20);
    options.policy = pick(0, 3) == 0 ? Policy::Fifo : Policy::Priority;
    SliceState fresh;
    fresh.heard.resize(static_cast<std::size_t>(scenario.rounds));
    for (int rank = 0; rank < scenario.ranks; ++rank) {
      schedulers_.emplace_back(options);
      states_.emplace_back(scenario.slices, fresh);
      for (SliceId slice = 0; slice < scenario.slices; ++slice) {
        schedule(Kind::Ready, rank, slice, 0, -1, delay());
      }
    }
  }

  ExchangeOutcome run() {
    while (!events_.empty()) {
      const Event event = events_.top();
      events_.pop();
      now_ = event.time;
      if (event.kind == Kind::Ready) on_ready(event);
      if (event.kind == Kind::Message) on_message(event);
      if (event.kind == Kind::Done) on_done(event);
      grant(event.rank);
    }
    for (const auto& slices : states_) {
      for (const SliceState& state : slices) {
        if (state.round < scenario_.rounds) ++outcome_.unfinished;
      }
    }
    return outcome_;
  }

 private:
  std::size_t pick(std::size_t low, std::size_t high) {
    return std::uniform_int_distribution<std::size_t>(low, high)(random_);
  }
  /// Mostly short, sometimes very long: a straggler or a retransmission.
  std::int64_t delay() { return static_cast<std::int64_t>(pick(0, pick(0, 9) == 0 ? 5000 : 200)); }

  void schedule(Kind kind, int rank, SliceId slice, int round, int origin, std::int64_t after) {
    events_.push({now_ + after, next_number_++, kind, rank, slice, round, origin});
  }
  Scheduler& scheduler(int rank) { return schedulers_[static_cast<std::size_t>(rank)]; }
  SliceState& state(int rank, SliceId slice) {
    return states_[static_cast<std::size_t>(rank)][slice];
  }
  std::vector<int>& heard(int rank, SliceId slice, int round) {
    return state(rank, slice).heard[static_cast<std::size_t>(round)];
  }

  void on_ready(const Event& event) {
    // Another priority on every rank and in every round: the worst case.
    scheduler(event.rank)
        .on_ready(event.slice, static_cast<int>(pick(0, 30)), bytes_[event.slice], Time{now_});
  }

  void on_message(const Event& event) {
    heard(event.rank, event.slice, event.round).push_back(event.origin);
    const SliceState& slice = state(event.rank, event.slice);
    if (event.round != slice.round) return;  // kept in `heard` until that round begins
    if (scenario_.admit_arrivals) scheduler(event.rank).on_arrival(event.slice);
    if (!slice.started) return;
    if (scenario_.spread == Spread::Ring) pass_on(event.rank, event.slice, event.origin);
    complete_if_heard_all(event.rank, event.slice);
  }

  void on_done(const Event& event) {
    scheduler(event.rank).on_done(event.slice);
    SliceState& slice = state(event.rank, event.slice);
    slice.started = false;
    if (++slice.round == scenario_.rounds) return;
    if (scenario_.admit_arrivals && !heard(event.rank, event.slice, slice.round).empty()) {
      scheduler(event.rank).on_arrival(event.slice);
    }
    schedule(Kind::Ready, event.rank, event.slice, slice.round, -1, delay());
  }

  void grant(int rank) {
    while (const auto granted = scheduler(rank).next(Time{now_})) {
      if (granted->overdrawn) ++outcome_.overdrawn;
      start(rank, granted->slice);
    }
  }

  void start(int rank, SliceId slice) {
    state(rank, slice).started = true;
    if (scenario_.spread == Spread::Ring) {
      pass_on(rank, slice, rank);
      for (const int origin : heard(rank, slice, state(rank, slice).round)) {
        pass_on(rank, slice, origin);
      }
    } else {
      for (int peer = 0; peer < scenario_.ranks; ++peer) {
        if (peer != rank) tell(peer, slice, state(rank, slice).round, rank);
      }
    }
    complete_if_heard_all(rank, slice);
  }

  void tell(int rank, SliceId slice, int round, int origin) {
    schedule(Kind::Message, rank, slice, round, origin, delay());
  }
  void pass_on(int rank, SliceId slice, int origin) {
    const int successor = (rank + 1) % scenario_.ranks;
    if (successor != origin) tell(successor, slice, state(rank, slice).round, origin);
  }
  void complete_if_heard_all(int rank, SliceId slice) {
    const SliceState& here = state(rank, slice);
    if (heard(rank, slice, here.round).size() + 1 == static_cast<std::size_t>(scenario_.ranks)) {
      schedule(Kind::Done, rank, slice, here.round, -1, delay());
    }
  }

  ExchangeScenario scenario_;
  std::mt19937_64 random_;
  std::int64_t now_ = 0;
  std::uint64_t next_number_ = 0;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::vector<std::size_t> bytes_;
  std::vector<Scheduler> schedulers_;
  std::vector<std::vector<SliceState>> states_;
  ExchangeOutcome outcome_;
};

}  // namespace

ExchangeOutcome simulate_exchange(const ExchangeScenario& scenario) {
  return Simulation(scenario).run();
}

}  // namespace tersum::scheduler::testing
