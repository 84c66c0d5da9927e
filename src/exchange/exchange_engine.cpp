// The engine's side of a gradient exchange: readiness, grants, slices in flight, delivery, failure.
#include <algorithm>
#include <cstring>

#include "src/exchange/exchange_group.hpp"
#include "src/exchange/exchange_state.hpp"

namespace tersum {

using runtime::Clock;
using runtime::Operation;
using runtime::Signature;
using runtime::SliceJob;
using runtime::Task;

namespace {

// Slices that start in one turn of the engine: messages and heartbeats must have turns, too.
constexpr int kGrantsPerTurn = 64;

}  // namespace

void ExchangeState::begin_round(std::uint64_t round, std::uint64_t step) {
  if (round != round_) session_->engine().forget(group_->id(), round_);
  std::erase_if(group_->doomed, [&](const auto& entry) { return entry.first.operation < round; });
  round_ = round;
  step_ = step;
  round_failure_ = Status::ok();
  scheduler_->reset();
  for (auto& slice : slices_) {
    slice.started = false;
    slice.gradients_to_come = slice.gradients.size();
  }
  for (auto& track : tracks_) {
    track.submitted = false;
    track.slices_to_deliver = track.slices_to_end = track.slices.size();
    track.slices_in_flight = 0;
    track.failure = Status::ok();
  }
  if (auto early = early_slices_.extract(round); !early.empty())
    for (std::uint32_t slice : early.mapped()) scheduler_->on_arrival(slice);
  if (auto doomed = doomed_rounds_.extract(round); !doomed.empty())
    fail_round(round, doomed.mapped());
}

void ExchangeState::on_submit(std::size_t index, void* data, std::shared_ptr<WorkState> work,
                              const Status& ready) {
  Track& track = tracks_[index];
  track.data = data;
  track.pending = std::move(work);
  track.submitted = true;
  if (Status failure = group_->failure(); !failure.is_ok() || !round_failure_.is_ok()) {
    track.failure = failure.is_ok() ? round_failure_ : failure;
    complete_if_ended(track);
    return;
  }
  if (!ready.is_ok())
    return session_->engine().fail_operation(*group_, {group_->id(), 0, round_, 0}, ready, true);
  for (std::uint32_t slice : track.slices) {
    if (--slices_[slice].gradients_to_come > 0) continue;
    const auto& planned = plan_.slices[slice];
    for (std::size_t gradient : slices_[slice].gradients)
      if (tracks_[gradient].pending) tracks_[gradient].pending->set_stage(Stage::Ready);
    scheduler_->on_ready(slice, planned.priority, std::max(planned.bytes, runtime::kSmallestCharge),
                         Clock::now().time_since_epoch());
  }
  pump();
}

void ExchangeState::pump() {
  if (granting_) return;  // a slice that ends at once comes here from start_slice() below
  granting_ = true;
  for (int granted = 0; granted < kGrantsPerTurn; ++granted) {
    const auto grant =
        round_failure_.is_ok() ? scheduler_->next(Clock::now().time_since_epoch()) : std::nullopt;
    if (!grant) {
      granting_ = false;
      return;
    }
    if (grant->overdrawn) overdrawn_count_.fetch_add(1, std::memory_order_relaxed);
    start_slice(grant->slice);
  }
  session_->engine().submit(runtime::make_command([self = shared_from_this()] {
    self->granting_ = false;
    if (self->round_failure_.is_ok()) self->pump();
  }));
}

std::shared_ptr<SliceJob> ExchangeState::make_job(std::uint32_t slice) {
  auto job = std::make_shared<SliceJob>();
  const auto& segments = plan_.slices[slice].segments;
  const Track& first = tracks_[segments.front().gradient];
  job->dtype = gradients_[segments.front().gradient].dtype;
  job->op = op_;
  job->compressor = first.compressor;
  job->reducer = first.reducer;
  job->dense = first.compressor->traits().name == "none";
  job->slice = slice;
  job->device = device_of(segments.front().gradient);
  const std::size_t element = element_bytes(job->dtype);
  for (const auto& segment : segments) {
    Track& track = tracks_[segment.gradient];
    runtime::SlicePart part;
    part.gradient = segment.gradient;
    part.offset = segment.offset;
    part.count = segment.count;
    if (track.data != nullptr)  // it has been submitted
      part.data = static_cast<const std::byte*>(track.data) + segment.offset * element;
    part.result = track.result + segment.offset * element;
    part.state = track.state.get();
    part.reducer_state = track.reducer_state.get();
    part.context = {seed_, step_, track.key, segment.offset,
                    static_cast<std::uint32_t>(group_->world())};
    job->parts.push_back(part);
  }
  return job;
}

void ExchangeState::start_slice(std::uint32_t slice) {
  slices_[slice].started = true;
  slice_count_.fetch_add(1, std::memory_order_relaxed);
  auto job = make_job(slice);
  Signature signature;
  signature.kind = runtime::CallKind::ExchangeSlice;
  signature.dtype = job->dtype;
  signature.op = op_;
  signature.count = job->count();
  signature.detail = runtime::mix(plan_.hash, slice);
  signature.step = step_;
  for (std::size_t gradient : slices_[slice].gradients) ++tracks_[gradient].slices_in_flight;
  auto self = shared_from_this();
  auto operation = std::make_shared<Operation>(
      session_->engine(), group_, signature, std::make_shared<WorkState>(),
      session_->config().timeout,
      [self, slice, job](Operation& op) { return self->run_slice(op, slice, job); });
  operation->trace_label = slices_[slice].label;
  operation->on_stage = [this, slice](Stage stage) {
    for (std::size_t gradient : slices_[slice].gradients)
      if (tracks_[gradient].pending) tracks_[gradient].pending->set_stage(stage);
  };
  operation->on_end = [self, slice](const Status& status) { self->on_slice_end(slice, status); };
  session_->engine().start(std::move(operation), round_, slice);
}

runtime::Task<> ExchangeState::run_slice(Operation& op, std::uint32_t slice,
                                         std::shared_ptr<SliceJob> job) {
  op.set_stage(Stage::Granted);
  runtime::Task<> exchange = exchange_slice(op, *job);
  co_await exchange;
  // Gradients whose last slice this is: their results are whole, and only now the user's memory
  // changes.
  for (std::size_t gradient : slices_[slice].gradients) {
    if (--tracks_[gradient].slices_to_deliver > 0) continue;
    Task<> delivery = deliver(op, gradient);
    co_await delivery;
  }
}

runtime::Task<> ExchangeState::deliver(Operation& op, std::size_t gradient) {
  const Track& track = tracks_[gradient];
  const std::size_t bytes = gradients_[gradient].count * element_bytes(gradients_[gradient].dtype);
  if (bytes == 0) co_return;
  if (runtime::DeviceGradients* const device = device_of(gradient)) {
    Task<> copy = device->copy(op, track.data, track.result, bytes);
    co_await copy;
  } else {
    auto copy = op.compute(bytes, [&] { std::memcpy(track.data, track.result, bytes); });
    co_await copy;
  }
}

void ExchangeState::on_slice_end(std::uint32_t slice, const Status& status) {
  for (std::size_t gradient : slices_[slice].gradients) {
    Track& track = tracks_[gradient];
    --track.slices_in_flight;
    if (status.is_ok()) --track.slices_to_end;
  }
  if (!status.is_ok()) {
    fail_round(round_, status);
  } else if (round_failure_.is_ok()) {
    scheduler_->on_done(slice);
  }
  for (std::size_t gradient : slices_[slice].gradients) complete_if_ended(tracks_[gradient]);
  if (round_failure_.is_ok()) pump();
}

void ExchangeState::on_arrival(std::uint64_t round, std::uint32_t slice) {
  if (slice >= slices_.size() || round < round_) return;  // its signature will say what is wrong
  if (round > round_) {
    early_slices_[round].insert(slice);
  } else if (round_failure_.is_ok()) {
    scheduler_->on_arrival(slice);
    // The grant may start messages: not from inside the transport's callback.
    session_->engine().submit(runtime::make_command([self = shared_from_this()] {
      if (self->round_failure_.is_ok()) self->pump();
    }));
  }
}

void ExchangeState::fail_round(std::uint64_t round, const Status& status) {
  if (round != runtime::kWholeGroup && round > round_) {
    doomed_rounds_.emplace(round, status);
    return;
  }
  if (round < round_ || !round_failure_.is_ok()) return;
  round_failure_ = status;
  if (device_) device_->abort();
  scheduler_->reset();
  session_->engine().forget(group_->id(), round_);
  for (auto& track : tracks_) {
    if (!track.pending) continue;
    track.failure = status;
    complete_if_ended(track);
  }
}

/// A gradient's work ends when all its slices have, or, in a failed round, when none holds its
/// memory any more.
void ExchangeState::complete_if_ended(Track& track) {
  if (!track.pending || track.slices_in_flight > 0) return;
  if (track.failure.is_ok() && track.slices_to_end > 0) return;
  auto work = std::exchange(track.pending, nullptr);
  work->complete(track.slices_to_end == 0 ? Status::ok() : track.failure);
}

// ---- the group ----

bool ExchangeState::ExchangeGroup::has_started(const transport::Key& key) const {
  if (key.operation != owner_.round_) return key.operation < owner_.round_;
  return !owner_.round_failure_.is_ok() ||
         (key.slice < owner_.slices_.size() && owner_.slices_[key.slice].started);
}

void ExchangeState::ExchangeGroup::on_early(const transport::Key& key) {
  owner_.on_arrival(key.operation, key.slice);
}

void ExchangeState::ExchangeGroup::on_operation_failed(const transport::Key& key,
                                                       const Status& status) {
  owner_.fail_round(key.operation == runtime::kWholeGroup ? owner_.round_ : key.operation, status);
}

}  // namespace tersum
