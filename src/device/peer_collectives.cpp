#include "src/device/peer_collectives.hpp"

#include <cuda_runtime_api.h>

#include <chrono>
#include <mutex>
#include <numeric>
#include <thread>
#include <vector>

#include "cuda/collectives.hpp"
#include "cuda/event_pool.hpp"
#include "src/device/peer_links.hpp"
#include "src/device/shape_check.hpp"
#include "src/session.hpp"

namespace tersum::runtime {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kSpin = std::chrono::microseconds(200);
constexpr auto kNap = std::chrono::microseconds(50);

std::uint64_t others(const std::vector<std::size_t>& counts, int rank) {
  const auto all = std::accumulate(counts.begin(), counts.end(), std::uint64_t{0});
  return all - counts[static_cast<std::size_t>(rank)];
}

/// What a rank has to send to the others at least.
std::uint64_t sent_elements(const DeviceCall& call, int rank, int size) {
  const auto peers = static_cast<std::uint64_t>(size - 1);
  switch (call.kind) {
    case CallKind::AllReduce:
      return 2 * peers * call.count / static_cast<std::uint64_t>(size);
    case CallKind::AllGatherV:
      return peers * call.receive_counts[static_cast<std::size_t>(rank)];
    case CallKind::AllToAllV:
      return others(call.send_counts, rank);
    case CallKind::Broadcast:
      return rank == call.peer ? peers * call.count : 0;
    case CallKind::Reduce:
      return rank == call.peer ? 0 : call.count;
    case CallKind::PointToPoint:
      return call.sending ? call.count : 0;
    default:
      return peers * call.count;
  }
}

class PeerCollectives;

/// Done when its event is; whoever wants to know looks.
class DeviceWorkState final : public WorkState,
                              public std::enable_shared_from_this<DeviceWorkState> {
 public:
  explicit DeviceWorkState(std::shared_ptr<PeerCollectives> owner);
  ~DeviceWorkState() override;

  /// Marks its end. The event is the owner's for ever, whoever has it later.
  cudaEvent_t record(gpu::StreamView stream) {
    event_.record(stream);
    return event_.get();
  }
  /// It is not done before `check` is, and fails with it.
  void depend_on(std::shared_ptr<WorkState> check) { check_ = std::move(check); }
  bool look() noexcept override;
  bool wait_for(std::chrono::nanoseconds timeout) override;
  void on_complete(std::function<void(const Status&)> callback) override;
  void wait_on(Stream stream) override { gpu::StreamView(stream).wait(event_); }

 private:
  std::shared_ptr<PeerCollectives> owner_;
  gpu::Event event_;
  std::shared_ptr<WorkState> check_;  // may be null
};

class PeerCollectives final : public DeviceCollectives,
                              public std::enable_shared_from_this<PeerCollectives> {
 public:
  PeerCollectives(const Session& session, std::shared_ptr<Group> group)
      : engine_(&session.engine()),
        group_(std::move(group)),
        links_(take_peer_links(session, group_, LinkUse::Calls)),
        peers_(links_->peers),
        check_(session.engine(), group_, session.config().timeout) {
    done_->complete(Status::ok());
  }

  Work start(const DeviceCall& call) override {
    if (const Status failure = group_->failure(); !failure.is_ok()) throw Error(failure);
    const gpu::StreamView stream(call.stream);
    const bool is_asked = !call.stream_ordered && !stream.is_capturing();  // what has become of it
    if (!is_asked) {
      if (const Status status = outcome(); !status.is_ok()) throw Error(status);
    }
    group_->count_sent(sent_elements(call, group_->rank(), group_->size()) *
                       element_bytes(call.dtype));
    if (!is_asked) {
      const std::lock_guard lock(mutex_);
      check_.begin(call);
      launch(call, stream);
      return Work(done_);
    }
    auto work = std::make_shared<DeviceWorkState>(shared_from_this());
    {
      const std::lock_guard lock(mutex_);  // one operation after the other, whoever calls
      work->depend_on(check_.begin(call));
      launch(call, stream);
      last_ = work->record(stream);
    }
    work->set_stage(Stage::Exchanging);
    return Work(std::move(work));
  }

  void abort() noexcept override { peers_.abort(); }

  bool drain() noexcept override {
    std::unique_lock lock(mutex_);
    const cudaEvent_t last = last_;
    lock.unlock();
    if (last != nullptr && cudaEventSynchronize(last) != cudaSuccess)
      cudaGetLastError();  // the context is broken: nothing runs in it any more
    lock.lock();
    const auto check = check_.last();
    if (check && engine_ && !engine_->on_engine_thread()) {
      lock.unlock();  // the engine may need it
      check->wait();
      lock.lock();
    }
    if (engine_) engine_->submit(make_command([engine = engine_] { engine->look_at_watched(); }));
    return true;  // peers may write into the links' memory, but that is the pool's
  }

  void close() noexcept override {
    const std::lock_guard lock(mutex_);
    engine_ = nullptr;
  }

  Status status() override { return outcome(); }

  /// How an operation that is over has ended.
  Status outcome() {
    Status status = peers_.status();
    if (status.is_ok()) return status;
    if (const Status failure = group_->failure(); !failure.is_ok()) return failure;
    const std::lock_guard lock(mutex_);
    if (engine_) {
      engine_->submit(make_command([engine = engine_, group = group_, status] {
        engine->fail_group(*group, status, true);
      }));
    }
    return status;
  }
  void watch(std::shared_ptr<WorkState> work) {
    const std::lock_guard lock(mutex_);
    if (engine_) engine_->watch(std::move(work));
  }
  int device() const noexcept { return peers_.device(); }
  gpu::EventPool& events() noexcept { return events_; }

 private:
  void launch(const DeviceCall& call, gpu::StreamView stream);

  Engine* engine_;
  const std::shared_ptr<Group> group_;
  const std::shared_ptr<PeerLinks> links_;
  gpu::PeerCommunicator& peers_;
  ShapeCheck check_;
  gpu::EventPool events_;
  const std::shared_ptr<WorkState> done_ = std::make_shared<WorkState>();
  cudaEvent_t last_ = nullptr;  // of the last work
  std::mutex mutex_;
};

void PeerCollectives::launch(const DeviceCall& call, gpu::StreamView stream) {
  const gpu::Scales scales{call.pre_scale, call.post_scale};
  switch (call.kind) {
    case CallKind::AllReduce:
      return peers_.all_reduce(call.input, call.output, call.count, call.dtype, call.op, stream,
                               scales);
    case CallKind::ReduceScatter:
      return peers_.reduce_scatter(call.input, call.output, call.count, call.dtype, call.op, stream,
                                   scales);
    case CallKind::AllGather:
      return peers_.all_gather(call.input, call.output, call.count, call.dtype, stream);
    case CallKind::Broadcast:
      return peers_.broadcast(call.input, call.output, call.count, call.dtype, call.peer, stream);
    case CallKind::Reduce:
      return peers_.reduce(call.input, call.output, call.count, call.dtype, call.op, call.peer,
                           stream, scales);
    case CallKind::AllToAll:
      return peers_.all_to_all(call.input, call.output, call.count, call.dtype, stream);
    case CallKind::AllGatherV:
      return peers_.all_gather_v(call.input, call.output, call.receive_counts, call.dtype, stream);
    case CallKind::AllToAllV:
      return peers_.all_to_all_v(call.input, call.send_counts, call.output, call.receive_counts,
                                 call.dtype, stream);
    case CallKind::Barrier:
      return peers_.barrier(stream);
    case CallKind::PointToPoint:
      if (call.sending) return peers_.send(call.input, call.count, call.dtype, call.peer, stream);
      return peers_.receive(call.output, call.count, call.dtype, call.peer, stream);
    default:
      throw Error(Code::Internal,
                  std::string(to_string(call.kind)) + " is no collective on device memory");
  }
}

DeviceWorkState::DeviceWorkState(std::shared_ptr<PeerCollectives> owner)
    : owner_(std::move(owner)), event_(owner_->events().take(owner_->device())) {}

DeviceWorkState::~DeviceWorkState() {
  owner_->events().give(owner_->device(), std::move(event_));
}

bool DeviceWorkState::look() noexcept {
  if (done()) return true;
  try {
    if (!event_.is_done() || (check_ && !check_->done())) return false;
    const Status checked = check_ ? check_->status() : Status::ok();
    complete(checked.is_ok() ? owner_->outcome() : checked);
  } catch (const Error& error) {
    complete(error.status());
  }
  return true;
}

/// Looks all the time at first, for what ends at once, then leaves the core to others.
bool DeviceWorkState::wait_for(std::chrono::nanoseconds timeout) {
  const auto begin = Clock::now();
  for (;;) {
    if (look()) return true;
    const auto waited = Clock::now() - begin;
    if (waited >= timeout) return false;
    if (waited > kSpin) std::this_thread::sleep_for(kNap);
  }
}

void DeviceWorkState::on_complete(std::function<void(const Status&)> callback) {
  WorkState::on_complete(std::move(callback));
  if (!look()) owner_->watch(shared_from_this());
}

}  // namespace

std::shared_ptr<DeviceCollectives> open_peer_collectives(CommunicatorState& communicator) {
  return std::make_shared<PeerCollectives>(*communicator.session, communicator.group);
}

}  // namespace tersum::runtime
