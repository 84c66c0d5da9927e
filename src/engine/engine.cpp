#include "src/engine/engine.hpp"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "src/engine/notice.hpp"

namespace tersum::runtime {
namespace {

// Timers and control sockets are looked at after so many turns or so much time, whichever comes
// first: one turn may hold large copies.
constexpr int kPollTurns = 16;
constexpr auto kPollInterval = std::chrono::milliseconds(1);
constexpr auto kWatchInterval = std::chrono::microseconds(100);  // of work that ends on a device

}  // namespace

Engine::Engine(const EngineOptions& options, std::unique_ptr<boost::asio::io_context> context,
               std::unique_ptr<transport::Transport> transport,
               std::unique_ptr<transport::ControlPlane> control, int rank,
               const std::vector<std::vector<std::byte>>& addresses, Logger logger,
               std::shared_ptr<Trace> trace)
    : options_(options),
      rank_(rank),
      logger_(std::move(logger)),
      trace_(std::move(trace)),
      context_(std::move(context)),
      transport_(std::move(transport)),
      control_(std::move(control)),
      transport_descriptor_(*context_),
      wake_descriptor_(*context_),
      ticker_(*context_),
      grace_(*context_),
      watcher_(*context_),
      pool_(options.threads) {
  transport_->connect(rank, addresses, *this);
  const int wake = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake < 0) throw Error(Code::System, std::string("eventfd: ") + std::strerror(errno));
  wake_descriptor_.assign(wake);
  transport_descriptor_.assign(::dup(transport_->descriptor()));
  thread_ = std::thread([this] { loop(); });
}

Engine::~Engine() {
  if (thread_.joinable()) shutdown();
}

void Engine::submit(std::unique_ptr<Command> command) noexcept {
  commands_.push(std::move(command));
  if (sleeping_.exchange(false, std::memory_order_seq_cst)) {
    const std::uint64_t one = 1;
    [[maybe_unused]] auto written = ::write(wake_descriptor_.native_handle(), &one, sizeof(one));
  }
}

// ---- the loop ----

namespace {
thread_local bool is_engine_thread = false;
}

bool Engine::on_any_engine_thread() noexcept {
  return is_engine_thread;
}

void Engine::loop() {
  is_engine_thread = true;
  if (control_) control_->start(*this);
  auto idle_since = Clock::now(), polled = idle_since;
  int turns = 0;
  while (!stopped_) {
    bool busy = turn();
    auto now = Clock::now();
    if (++turns == kPollTurns || !busy || now - polled >= kPollInterval) {
      context_->restart();
      busy |= context_->poll() > 0;
      now = polled = Clock::now();
      turns = 0;
    }
    if (!busy && now - idle_since >= options_.spin) {
      sleep();
      now = Clock::now();
      busy = true;
    }
    if (busy) idle_since = now;
  }
  retired_.clear();
}

/// One round over everything that can have work. True if any had.
bool Engine::turn() {
  bool busy = commands_.run_all();
  busy |= run_ready();
  busy |= transport_->progress();
  read_notices();
  busy |= run_ready();
  std::erase_if(notices_out_, [](const auto& notice) { return notice->complete; });
  retired_.clear();
  look_at_polled();
  return busy || !polled_.empty();
}

void Engine::look_at_polled() {
  if (polled_.empty()) return;
  const auto looked_at = std::exchange(polled_, {});  // what they resume may add more
  for (Polled* polled : looked_at)
    if (!polled->look()) polled_.push_back(polled);
}

bool Engine::run_ready() {
  const bool any = !ready_.empty();
  while (!ready_.empty()) {
    auto handles = std::exchange(ready_, {});
    for (auto handle : handles) handle.resume();
  }
  return any;
}

void Engine::watch_descriptor(boost::asio::posix::stream_descriptor& descriptor, bool& waiting) {
  if (waiting) return;
  waiting = true;
  descriptor.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                        [&waiting](const boost::system::error_code&) { waiting = false; });
}

void Engine::sleep() {
  sleeping_.store(true, std::memory_order_seq_cst);
  if (!commands_.empty()) {
    // Work has come in the meantime.
  } else if (transport_->arm()) {
    watch_descriptor(transport_descriptor_, transport_waiting_);
    watch_descriptor(wake_descriptor_, wake_waiting_);
    context_->restart();
    context_->run_one();
  } else {
    std::this_thread::yield();  // the transport has to be polled: let a peer on this core run first
  }
  sleeping_.store(false, std::memory_order_seq_cst);
  std::uint64_t count = 0;
  [[maybe_unused]] auto got = ::read(wake_descriptor_.native_handle(), &count, sizeof(count));
}

void Engine::watch(std::shared_ptr<WorkState> work) {
  submit(make_command([this, work = std::move(work)]() mutable {
    watched_.push_back(std::move(work));
    look_at_watched();
  }));
}

void Engine::look_at_watched() {
  const auto looked_at = std::exchange(watched_, {});  // callbacks may submit more
  for (const auto& work : looked_at)
    if (!work->look()) watched_.push_back(work);
  if (watched_.empty() || watching_) return;
  watching_ = true;
  watcher_.expires_after(kWatchInterval);
  watcher_.async_wait([this](const boost::system::error_code& error) {
    watching_ = false;
    if (!error) look_at_watched();
  });
}

// ---- groups and operations ----

void Engine::add_group(std::shared_ptr<Group> group) {
  Group& added = *group;
  if (!job_failure_.is_ok()) added.set_failure(job_failure_);
  groups_.emplace(added.id(), std::move(group));
  for (const auto& [key, arrivals] : early_)
    if (key.communicator == added.id()) added.on_early(key);
  const auto notices = std::exchange(early_notices_, {});
  for (const auto& [key, status] : notices) apply_notice(key, status);
}

std::uint32_t Engine::new_group_id() noexcept {
  if (next_group_ > 0xffff) return 0;
  return static_cast<std::uint32_t>(rank_) << 16 | next_group_++;
}

void Engine::remove_group(std::uint32_t id, std::string_view what) {
  auto it = groups_.find(id);
  if (it == groups_.end()) return;
  auto group = it->second;
  const Status status(
      Code::Aborted,
      "rank " + std::to_string(group->rank()) + " has destroyed the " + std::string(what), {},
      group->world());
  bool pending = false;  // here, or on a peer that waits for a call that will not come
  for (const auto& [key, operation] : active_) pending |= key.communicator == id;
  std::vector<std::uint64_t> unread;
  for (const auto& [key, arrivals] : early_)
    if (key.communicator == id) unread.push_back(key.operation);
  fail_group(*group, status, pending || !unread.empty());
  for (std::uint64_t operation : unread) forget(id, operation);
  groups_.erase(id);
  closed_groups_.insert(id);
}

void Engine::start(std::shared_ptr<Operation> operation) {
  const std::uint64_t number = operation->group().next_operation++;
  start(std::move(operation), number, 0);
}

void Engine::start_pair(std::shared_ptr<Operation> operation, int peer, bool sending) {
  Group& group = operation->group();
  const std::uint64_t number = sending ? group.next_send[peer]++ : group.next_receive[peer]++;
  const int from = sending ? group.rank() : peer, to = sending ? peer : group.rank();
  start(std::move(operation), kPointToPoint | number,
        static_cast<std::uint32_t>(from) << 16 | static_cast<std::uint32_t>(to));
}

void Engine::start_slices(const std::vector<std::shared_ptr<Operation>>& slices) {
  Group& group = slices.front()->group();
  const std::uint64_t number = group.next_operation++;
  std::uint32_t index = 0;
  for (const auto& slice : slices) start(slice, number, index++);
  // What failed at its start, by early news of a peer, could not take later slices along.
  const auto failed = std::find_if(slices.begin(), slices.end(),
                                   [](const auto& slice) { return !slice->cause_.is_ok(); });
  if (failed == slices.end()) return;
  const Status cause = (*failed)->cause_;
  for (const auto& slice : slices) slice->fail(cause);
}

void Engine::start(std::shared_ptr<Operation> operation, std::uint64_t number,
                   std::uint32_t slice) {
  Group& group = operation->group();
  operation->key_ = {group.id(), slice, number, 0};
  Status failure = group.failure();
  if (auto it = group.doomed.find(operation->key_); it != group.doomed.end()) {
    failure = it->second;
    group.doomed.erase(it);
  }
  if (!failure.is_ok()) {
    operation->cause_ = failure.at(operation->name());
    operation->body_ended_ = true;
    forget(operation->key_);
    retire(*operation);
    return;
  }
  activate(std::move(operation));
}

void Engine::activate(std::shared_ptr<Operation> operation) {
  Operation& started = *operation;
  active_.emplace(started.key_, std::move(operation));
  schedule_tick();
  started.drive();
  if (auto it = early_.find(started.key_); it != early_.end()) {
    const auto arrivals = std::move(it->second);
    early_.erase(it);
    for (const Early& early : arrivals) {
      const int member = started.group().index_of(early.peer);
      if (member < 0 || early.signature == started.signature_) continue;
      mismatch(started, member, early.signature);
      break;
    }
  }
}

/// Called when nothing of the operation is in use any more: its Work completes.
void Engine::retire(Operation& operation) noexcept {
  auto self = operation.shared_from_this();
  const bool was_active = active_.erase(operation.key_) > 0;
  if (was_active && !operation.cause_.is_ok()) forget(operation.key_);
  operation.scratch_.release();
  record_trace(operation);
  if (operation.on_end) operation.on_end(operation.cause_);
  operation.work_->complete(operation.cause_);
  operation.body_ = nullptr;
  operation.on_end = nullptr;
  retired_.push_back(std::move(self));
}

}  // namespace tersum::runtime
