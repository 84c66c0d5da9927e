#include "src/device/exchange_device.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <exception>
#include <map>
#include <string>

#include "cuda/error.hpp"
#include "cuda/kernels.hpp"
#include "cuda/virtual_memory.hpp"
#include "src/config.hpp"
#include "src/device/device_slice.hpp"
#include "src/device/hierarchical_exchange.hpp"
#include "src/device/hold.hpp"
#include "src/device/peer_exchange.hpp"
#include "src/device/set_up.hpp"
#include "src/device/stream_notice.hpp"
#include "src/reduce.hpp"
#include "src/session.hpp"

namespace tersum::runtime {
namespace {

/// More slices than are ever exchanged at once: as many of the smallest as the default credit lets.
constexpr std::size_t kMostUnderWay = 16'384;

/// Credits for whose slices messages are pinned where CUDA gives no virtual memory on the host, as
/// in some containers: slices beyond the credit are common while one rank is late.
constexpr std::size_t kCreditsIfNotVirtual = 4;

int device_for_gradients() {
  if (!gpu::has_device())
    throw Error(Code::Unsupported, "gradients in device memory need a GPU; there is none here");
  return gpu::current_device();
}

/// A twin's state as the exchange keeps it.
class DeviceState final : public CompressorState {
 public:
  DeviceState(ExchangeDevice& device, const gpu::Twin& twin, std::size_t count)
      : device_(device), state_(twin.make_state(count, device.states_stream())) {
    device_.states_changed();
  }

  gpu::TwinState& state() noexcept { return *state_; }

  void commit() noexcept override {
    const gpu::DeviceGuard guard(device_.device());
    state_->commit(device_.states_stream());
    device_.states_changed();
  }
  void rollback() noexcept override { state_->rollback(); }
  std::vector<std::byte> save() const override {
    const gpu::DeviceGuard guard(device_.device());
    return state_->save(device_.states_stream());
  }
  void load(std::span<const std::byte> bytes) override {
    const gpu::DeviceGuard guard(device_.device());
    state_->load(bytes, device_.states_stream());
  }

 private:
  ExchangeDevice& device_;
  std::unique_ptr<gpu::TwinState> state_;
};

/// Calls a function once, on the engine's thread, then is gone.
class Told final : public StreamListener {
 public:
  Told(Engine& engine, std::function<void(const Status&)> function)
      : engine_(engine), function_(std::move(function)) {}
  void on_reached(const Status& status) noexcept override {
    engine_.submit(make_command([this, status] {
      const std::unique_ptr<Told> self(this);
      function_(status);
    }));
  }

 private:
  Engine& engine_;
  std::function<void(const Status&)> function_;
};

}  // namespace

gpu::TwinState* twin_state_of(CompressorState* state) noexcept {
  return state != nullptr ? &static_cast<DeviceState*>(state)->state() : nullptr;
}

/// What slices take is made here and in prepare(): later streams wait for them, and then CUDA may
/// let nobody load kernels, allocate or make events until they go on. Virtual memory is the
/// exception (gpu::VirtualBuffer).
ExchangeDevice::ExchangeDevice(Engine& engine, std::size_t slices)
    : engine_(engine), device_(device_for_gradients()), tables_(slices) {
  gpu::load_kernels();
  memory_.acquire(1, states_stream_);  // the driver's functions for it are looked up the first time
}

ExchangeDevice::~ExchangeDevice() {
  try {
    synchronize();
  } catch (const Error&) {  // the device is lost: nothing runs there
  }
}

void ExchangeDevice::synchronize() const {
  const gpu::DeviceGuard guard(device_);
  for (const auto& stream : streams_) cudaStreamSynchronize(stream.get());
  cudaStreamSynchronize(states_stream_.get());
}

std::unique_ptr<CompressorState> ExchangeDevice::make_state(const Compressor& compressor,
                                                            std::size_t count) {
  const gpu::DeviceGuard guard(device_);
  auto& twin = twins_[&compressor];
  if (!twin) twin = gpu::Twin::make(compressor);
  if (!twin)
    throw Error(Code::Unsupported, "the compressor " + compressor.spec() +
                                       " has no GPU form: keep its gradients in host memory, or "
                                       "choose another compressor");
  return std::make_unique<DeviceState>(*this, *twin, count);
}

std::byte* ExchangeDevice::allocate(std::size_t bytes) {
  const gpu::DeviceGuard guard(device_);
  results_.emplace_back(bytes);
  return results_.back().data();
}

void ExchangeDevice::check_memory(const void* data, const std::string& name) const {
  cudaPointerAttributes attributes{};
  gpu::check(cudaPointerGetAttributes(&attributes, data), "cudaPointerGetAttributes");
  if (attributes.type != cudaMemoryTypeDevice && attributes.type != cudaMemoryTypeManaged)
    throw Error(Code::InvalidArgument,
                name + " was registered in device memory, but data is in host memory");
  if (attributes.device != device_)
    throw Error(Code::InvalidArgument,
                name + ": data is on device " + std::to_string(attributes.device) +
                    ", but the exchange was made on device " + std::to_string(device_));
}

void ExchangeDevice::when_reached(Stream stream, std::function<void(const Status&)> function) {
  const gpu::DeviceGuard guard(device_);
  const gpu::StreamView theirs(stream);
  if (theirs.is_capturing())
    throw Error(Code::Unsupported,
                "a gradient exchange cannot be captured into a CUDA graph: submit outside of it");
  // Not in the caller's stream: what follows there would wait for the function.
  ready_.record(theirs);
  ready_stream_.wait(ready_);
  auto told = std::make_unique<Told>(engine_, std::move(function));
  notify(ready_stream_, *told, events_);
  told.release();
}

void ExchangeDevice::connect(Session& session, const std::shared_ptr<Group>& group) {
  session_ = &session;
  group_ = group;
  if (const char* connections = cuda_connections(); most_held_streams(connections) == 0)
    engine_.logger().warn("CUDA_DEVICE_MAX_CONNECTIONS=" + std::string(connections) +
                          " leaves no queue for a stream that waits for a work: "
                          "Work::wait_on() will block its caller. Leave it unset, or let it be 8 "
                          "to 32");
  if (engine_.transport().capabilities().device_memory)
    engine_.logger().warn(
        "UCX uses CUDA here (TERSUM_DEVICE_STAGING=ucx, or a UCX_TLS that lets it): what makes a "
        "thread wait inside CUDA behind Work::wait_on() may then keep the exchange from going on; "
        "wait() first, or leave CUDA out of UCX");
  const gpu::DeviceGuard guard(device_);
  peers_ = PeerExchange::open(session, group);
  if (!peers_) hierarchy_ = HierarchicalExchange::open(session, group);
}

void ExchangeDevice::prepare(std::span<const std::shared_ptr<const SliceJob>> jobs,
                             std::size_t credit_bytes) {
  const gpu::DeviceGuard guard(device_);
  std::exception_ptr error;
  try {
    for (const auto& job : jobs) make_room(*job);
    make_room_for_messages(jobs, credit_bytes);
    const std::size_t under_way = std::min(jobs.size(), kMostUnderWay);
    std::size_t parts = 0;  // as many as gradients, or more: each is submitted once
    for (const auto& job : jobs) parts += job->parts.size();
    // A slice waits for one event at a time, its share between hosts for another one; and each of
    // its buffers has one: values, elements, workspace, payloads, in the slice and in its share.
    events_.reserve(device_, 2 * under_way + parts);
    memory_.reserve(8 * under_way);
    states_changed();
  } catch (...) {
    error = std::current_exception();
  }
  const bool agreed = agree(*session_, group_, !error);
  if (error) std::rethrow_exception(error);
  if (!agreed)
    throw Error(Code::OutOfMemory,
                "another rank could not prepare its gradient exchange on its GPU; it says why");
}

void ExchangeDevice::make_room(const SliceJob& job) {
  SliceTables& tables = tables_[job.slice];
  const auto table_of = [&](auto place) {
    std::vector<gpu::BucketTensor> tensors;
    for (const Piece& whole : whole_parts(job))
      tensors.push_back({place(*whole.part), whole.count, job.dtype, whole.at});
    return std::make_unique<gpu::GatherPlan>(tensors, states_stream_);
  };
  // Dense elements stay what they are, but for 16-bit floats that a host sums.
  if (inputs_are_gathered(job) && (!job.dense || (hierarchy_ && is_half(job.dtype))))
    tables.inputs = table_of([](const SlicePart&) { return nullptr; });  // known at each exchange
  if (!results_are_values(job) && !job.dense)
    tables.results = table_of([](const SlicePart& part) { return part.result; });
  // A slice has one, and in a hierarchy its share has another.
  for (int i = 0; !job.dense && i < (hierarchy_ ? 2 : 1); ++i)
    statuses_.push_back(std::make_unique<gpu::DecodeStatus>(states_stream_));
}

/// Of each size as much as is needed when as many slices as the credit lets be under way have
/// messages of that size. Those beyond it, which peers have started, take virtual memory.
void ExchangeDevice::make_room_for_messages(std::span<const std::shared_ptr<const SliceJob>> jobs,
                                            std::size_t credit_bytes) {
  std::map<std::size_t, std::vector<std::size_t>> slices;  // their own bytes, by their messages'
  for (const auto& job : jobs)
    if (const std::size_t bytes = bytes_of_messages(*job); bytes > 0)
      slices[gpu::BufferPool::class_bytes(bytes)].push_back(
          std::max(job->count() * element_bytes(job->dtype), kSmallestCharge));
  const bool can_grow = gpu::VirtualBuffer(gpu::Place::Host, 1).is_virtual();
  const std::size_t credits = can_grow ? 1 : kCreditsIfNotVirtual;
  std::vector<std::size_t> requests;
  for (auto& [bytes, sizes] : slices) {
    std::ranges::sort(sizes);
    std::size_t under_way = 0;  // a slice may start whenever less than the credit is
    for (auto size = sizes.begin(); size != sizes.end() && under_way / credits < credit_bytes;
         ++size) {
      requests.push_back(bytes);
      under_way += *size;
    }
  }
  try {
    pinned_.reserve(requests);
  } catch (const Error& error) {
    if (error.code() != Code::OutOfMemory) throw;
    throw Error(Code::OutOfMemory,
                "no room to pin the memory of messages of " + std::to_string(requests.size()) +
                    " slices; a smaller credit takes less (TERSUM_DEVICE_CREDIT_BYTES, with "
                    "gradients on the host as well TERSUM_CREDIT_BYTES, or "
                    "ExchangeOptions::credit_bytes)");
  }
}

std::size_t ExchangeDevice::bytes_of_messages(const SliceJob& job) const {
  if (peers_) return 0;
  if (hierarchy_ && HierarchicalExchange::suits(job)) return hierarchy_->bytes_of_messages(job);
  return message_bytes(job, group_->size(), group_->rank());
}

std::uint64_t ExchangeDevice::layout_digest() const noexcept {
  if (!hierarchy_) return 0;
  std::uint64_t digest = 1;
  for (const int member : group_->members())
    digest = mix(digest, static_cast<std::uint64_t>(session_->host_of(member)));
  return digest;
}

Task<> ExchangeDevice::exchange(Operation& op, const SliceJob& job) {
  if (peers_) {
    DeviceSlice slice(*this, op, job);
    Task<> exchange = peers_->exchange(slice);
    co_await exchange;
  } else if (hierarchy_ && HierarchicalExchange::suits(job)) {
    Task<> exchange = hierarchy_->exchange(*this, op, job);
    co_await exchange;
  } else {
    const std::unique_ptr<SliceCodec> codec = make_device_codec(*this, op, job);
    Task<> exchange = exchange_messages(op, job, *codec);
    co_await exchange;
  }
}

void ExchangeDevice::abort() noexcept {
  if (peers_) peers_->abort();
  if (hierarchy_) hierarchy_->abort();
}

void ExchangeDevice::recover() {
  synchronize();
  {
    const std::lock_guard lock(kept_mutex_);
    kept_.clear();
  }
  if (peers_ && !agree(*session_, group_, !peers_->aborted())) peers_->renew();
  if (hierarchy_ && !agree(*session_, group_, !hierarchy_->aborted())) hierarchy_->renew();
}

Task<> ExchangeDevice::copy(Operation& op, void* to, const void* from, std::size_t bytes) {
  const gpu::StreamView stream = streams_[0].view();
  {
    const gpu::DeviceGuard guard(device_);
    gpu::check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream.get()),
               "cudaMemcpyAsync");
  }
  StreamEvent copied(engine_, events_, device_, stream);
  co_await copied.in(op);
}

gpu::StreamView ExchangeDevice::stream(std::uint32_t slice) {
  const gpu::Stream& stream = streams_[slice % kStreams];
  stream.wait(states_changed_);
  return stream.view();
}

ExchangeDevice::StatusWord ExchangeDevice::take_status(gpu::StreamView stream) {
  if (statuses_.empty()) return std::make_unique<gpu::DecodeStatus>(stream);
  StatusWord status = std::move(statuses_.back());
  statuses_.pop_back();
  status->clear(stream);
  return status;
}

std::unique_ptr<DeviceGradients> open_device_gradients(Engine& engine, std::size_t slices) {
  return std::make_unique<ExchangeDevice>(engine, slices);
}

}  // namespace tersum::runtime
