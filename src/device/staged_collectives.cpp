#include "src/device/staged_collectives.hpp"

#include <cuda_runtime_api.h>

#include <condition_variable>
#include <map>
#include <mutex>
#include <string>
#include <unordered_map>

#include "cuda/error.hpp"
#include "src/device/device_pools.hpp"
#include "src/device/hierarchy.hpp"
#include "src/device/set_up.hpp"
#include "src/device/staged_call.hpp"
#include "src/session.hpp"

namespace tersum::runtime {
namespace {

SlotMemory slot_memory(const Session& session) {
  return session.config().device_staging == "ucx" ? SlotMemory::Device : SlotMemory::Pinned;
}

/// One that another group has left, or a new one.
std::unique_ptr<StagingRoom> take_room(const Session& session) {
  const int device = gpu::current_device();
  auto rooms = session.device_pools()->rooms.take(1, [&](const StagingRoom& room) {
    return room.device == device && room.memory == slot_memory(session);
  });
  return rooms.empty() ? std::make_unique<StagingRoom>(slot_memory(session))
                       : std::move(rooms.front());
}

/// Says over which networks device memory will travel, and in which form.
void log_routes(const Session& session, const Group& group) {
  Engine& engine = session.engine();
  std::map<std::string, std::string> ranks;  // by route
  session.run_on_engine([&] {
    for (int rank = 0; rank < group.size(); ++rank) {
      if (rank == group.rank()) continue;
      const std::string route = engine.transport().route(group.world(rank));
      if (!route.empty()) ranks[route].append(" ").append(std::to_string(rank));
    }
  });
  const char* form =
      slot_memory(session) == SlotMemory::Pinned ? "through pinned memory" : "as it is";
  for (const auto& [route, who] : ranks)
    engine.logger().info("device memory travels " + std::string(form) + " over " + route +
                         " to ranks" + who);
}

/// Two locks: order_ is held while a call is put into streams, which may block when the device has
/// no room for more; only the engine makes room then, so it never takes that one.
class StagedCollectives final : public DeviceCollectives, public StagingOwner {
 public:
  StagedCollectives(const Session& session, std::shared_ptr<Group> group)
      : engine_(&session.engine()),
        group_(std::move(group)),
        timeout_(session.config().timeout),
        algorithm_(parse_algorithm(session.config().algorithm)),
        device_(gpu::current_device()),
        pools_(session.device_pools()),
        room_(take_room(session)),
        out_(room_->out),
        in_(room_->in),
        hierarchy_(Hierarchy::open(session, group_, *room_)) {
    if (slot_memory(session) == SlotMemory::Device)
      slot_exchange_ = std::make_unique<SlotExchange>(session, group_, *this, device_);
    // Allocating waits for all that runs on a GPU. Where ranks share one, nobody may begin before
    // all have what they need.
    agree(session, group_, true);
    log_routes(session, *group_);
  }

  ~StagedCollectives() override;

  Work start(const DeviceCall& call) override;
  void abort() noexcept override;
  bool drain() noexcept override;
  void close() noexcept override;

 private:
  OutLane& out_lane() noexcept override { return out_; }
  InLane& in_lane() noexcept override { return in_; }
  SlotExchange* slot_exchange() noexcept override { return slot_exchange_.get(); }
  void post(std::function<void()> function) override;
  void on_failed(const StagedCall& call, const Status& status) override;
  Status outcome(const StagedCall& call) override;
  void on_over(const StagedCall& call) override;

  void enqueue(StagedCall& call, gpu::StreamView stream);
  StagedCall& keep(std::unique_ptr<StagedCall> call);

  Engine* engine_;
  const std::shared_ptr<Group> group_;
  const std::chrono::milliseconds timeout_;
  const Algorithm algorithm_;
  const int device_;
  const std::weak_ptr<DevicePools> pools_;
  std::unique_ptr<StagingRoom> room_;
  OutLane& out_;
  InLane& in_;
  const std::shared_ptr<Hierarchy> hierarchy_;
  std::unique_ptr<SlotExchange> slot_exchange_;
  gpu::Event ready_, taken_out_, brought_in_;

  std::mutex order_;
  std::mutex state_;  // of what follows, and of engine_
  std::condition_variable over_;
  std::unordered_map<const StagedCall*, std::unique_ptr<StagedCall>> calls_;
  bool drained_ = false;
};

StagedCollectives::~StagedCollectives() {
  if (!drained_) return;
  if (const auto pools = pools_.lock()) pools->rooms.put(std::move(room_));
}

Work StagedCollectives::start(const DeviceCall& call) {
  if (const Status failure = group_->failure(); !failure.is_ok()) throw Error(failure);
  const gpu::StreamView stream(call.stream);
  if (stream.is_capturing())
    throw Error(Code::Unsupported,
                "a graph cannot hold collectives that leave the host: capture around them");
  const gpu::DeviceGuard guard(device_);
  const bool in_three_steps = hierarchy_ && hierarchy_->suits(call);
  auto made = in_three_steps ? hierarchy_->make_call(*this, call, algorithm_)
                             : std::make_unique<StagedCall>(*this, group_, call, algorithm_);
  if (!in_three_steps) made->cut();
  const std::lock_guard lock(order_);
  const auto work = made->work();
  made->reserve();
  StagedCall& staged = keep(std::move(made));
  staged.start(*engine_, call.timeout.count() > 0 ? call.timeout : timeout_, signature_of(call));
  try {
    if (in_three_steps)
      hierarchy_->enqueue(*this, call, staged, stream);
    else
      enqueue(staged, stream);
  } catch (const Error& error) {
    post([engine = engine_, group = group_, status = error.status()] {
      engine->fail_group(*group, status, true);
    });
    throw;
  }
  return Work(work);
}

/// Slice by slice, so that nothing in a stream depends on what is put into another one later.
void StagedCollectives::enqueue(StagedCall& call, gpu::StreamView stream) {
  std::size_t done = 0;
  try {
    const StagedSlice& first = call.slices().front();
    const bool outward = first.out.slot != nullptr, inward = first.in.slot != nullptr;
    ready_.record(stream);
    if (outward) out_.wait(ready_);
    if (inward) in_.wait(ready_);
    call.copy_own(stream);
    const std::size_t element = element_bytes(call.call().dtype);
    for (StagedSlice& slice : call.slices()) {
      const std::size_t begin = slice.begin * element;
      if (outward) call.copy_out(slice, static_cast<const std::byte*>(call.call().input) + begin);
      if (inward) call.copy_in(slice, static_cast<std::byte*>(call.call().output) + begin);
      ++done;
    }
    if (outward) {
      taken_out_.record(out_.stream());
      stream.wait(taken_out_);
    }
    if (inward) {
      brought_in_.record(in_.stream());
      stream.wait(brought_in_);
    }
  } catch (const Error& error) {
    call.enqueued(error.status(), done);
    throw;
  }
  call.enqueued();
}

void StagedCollectives::abort() noexcept {
  if (!hierarchy_) return;
  hierarchy_->abort();
  post([engine = engine_, hierarchy = hierarchy_, status = group_->failure()] {
    hierarchy->fail(*engine, status);
  });
}

/// What has failed, and memory that the network knows, is not for another group.
bool StagedCollectives::drain() noexcept {
  std::unique_lock lock(state_);
  if (engine_ == nullptr || engine_->on_engine_thread()) return false;  // it has to end them itself
  over_.wait(lock, [this] { return calls_.empty(); });
  if (hierarchy_) hierarchy_->close(*engine_);
  drained_ = group_->failure().is_ok() && !slot_exchange_;
  return drained_;
}

void StagedCollectives::close() noexcept {
  out_.release_all();
  in_.release_all();
  try {
    out_.stream().synchronize();  // the streams call back into this
    in_.stream().synchronize();
  } catch (const std::exception&) {
    // The context is broken: it has called back already.
  }
  const std::lock_guard lock(state_);
  engine_ = nullptr;
  for (const auto& [key, call] : calls_)
    call->work()->complete(Status(Code::Aborted, "the communicator was destroyed"));
}

void StagedCollectives::post(std::function<void()> function) {
  const std::lock_guard lock(state_);
  if (engine_ != nullptr) engine_->submit(make_command(std::move(function)));
}

StagedCall& StagedCollectives::keep(std::unique_ptr<StagedCall> call) {
  const std::lock_guard lock(state_);
  StagedCall& kept = *call;
  calls_.emplace(&kept, std::move(call));
  return kept;
}

/// Ranks that exchange their shares are not all that wait for each other: what fails between some
/// of them has failed for everybody, who must not take what comes now for the result.
void StagedCollectives::on_failed(const StagedCall& call, const Status& status) {
  if (&call.group() == group_.get()) return;
  hierarchy_->abort();
  engine_->fail_group(*group_, status, true);
}

Status StagedCollectives::outcome(const StagedCall& call) {
  if (&call.group() == group_.get()) return Status::ok();
  const Status status = hierarchy_->status();
  if (status.is_ok()) return status;
  if (const Status failure = group_->failure(); !failure.is_ok()) return failure;
  engine_->fail_group(*group_, status, true);
  return status;
}

void StagedCollectives::on_over(const StagedCall& call) {
  const std::lock_guard lock(state_);
  calls_.erase(&call);
  if (calls_.empty()) over_.notify_all();
}

}  // namespace

std::shared_ptr<DeviceCollectives> open_staged_collectives(CommunicatorState& communicator) {
  return std::make_shared<StagedCollectives>(*communicator.session, communicator.group);
}

}  // namespace tersum::runtime
