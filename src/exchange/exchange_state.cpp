// The user's side of a gradient exchange: set-up, submission, steps, checkpoints.
#include "src/exchange/exchange_state.hpp"

#include <algorithm>
#include <cstring>
#include <ranges>

#include "compressors/hash.hpp"
#include "compressors/rules.hpp"
#include "src/exchange/exchange_group.hpp"

namespace tersum {

namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

/// The settings with those for gradients that are all on GPUs in their places. A slice has a price
/// whatever its bytes: some 15 us between GPUs of one host, which move 5 MiB in that time, and the
/// steps of the staging pipeline between hosts.
Config sizes_for(const std::vector<Gradient>& gradients, Config config, bool one_host) {
  const auto on_device = [](const Gradient& gradient) {
    return gradient.memory == MemoryType::Cuda;
  };
  if (!std::ranges::all_of(gradients, on_device)) return config;
  const auto chosen = [](std::size_t setting, std::size_t automatic) {
    return setting != 0 ? setting : automatic;
  };
  config.slice_bytes = chosen(config.device_slice_bytes, (one_host ? 32 : 16) * kMiB);
  config.credit_bytes = chosen(config.device_credit_bytes, (one_host ? 256 : 64) * kMiB);
  config.bucket_bytes = std::max(config.bucket_bytes, config.slice_bytes);
  return config;
}

}  // namespace

/// Who waits for one is not kept for ever by gradients that are never submitted; those that were
/// have deadlines of their own.
class ExchangeState::GradientWork final : public WorkState {
 public:
  GradientWork(std::weak_ptr<const ExchangeState> exchange, std::size_t gradient,
               std::chrono::nanoseconds timeout)
      : exchange_(std::move(exchange)), gradient_(gradient), timeout_(timeout) {}

  void wait() override {
    while (!wait_for(timeout_))
      if (const auto exchange = exchange_.lock()) exchange->check_companions(gradient_, *this);
  }

 private:
  const std::weak_ptr<const ExchangeState> exchange_;
  const std::size_t gradient_;
  const std::chrono::nanoseconds timeout_;
};

ExchangeState::ExchangeState(const Communicator& communicator, std::vector<Gradient> gradients,
                             const ExchangeOptions& options)
    : parent_(communicator.state()),
      session_(parent_->session),
      gradients_(std::move(gradients)),
      op_(options.op) {
  if (op_ != ReduceOp::Average && op_ != ReduceOp::Sum)
    throw Error(Code::InvalidArgument,
                "a gradient exchange averages or sums, not " + std::string(to_string(op_)));
  if (gradients_.empty())
    throw Error(Code::InvalidArgument, "a gradient exchange needs at least one gradient");
  build_plan(options);
}

ExchangeState::~ExchangeState() {
  close();
}

void ExchangeState::close() noexcept {
  if (!group_) return;
  session_->run_on_engine([this] {
    session_->engine().remove_group(group_->id(), "gradient exchange");
    if (device_) device_->abort();
  });
  if (session_->engine().on_engine_thread()) return;  // in a callback: nothing may block
  std::unique_lock lock(mutex_);
  const auto pending = works();
  lock.unlock();
  for (const auto& work : pending) work->wait_for(std::chrono::nanoseconds::max());
}

void ExchangeState::build_plan(const ExchangeOptions& options) {
  const Config& config = session_->config();
  const compressors::CompressorRules rules(
      options.compressor.value_or(config.compressor),
      options.compressor_rules.value_or(config.compressor_rules),
      options.compress_min_bytes.value_or(config.compress_min_bytes));
  seed_ = options.seed.value_or(config.seed);
  const Config sizes = sizes_for(gradients_, config, session_->share_a_host(*parent_->group));
  std::vector<scheduler::PlanInput> inputs;
  tracks_.resize(gradients_.size());
  std::uint64_t elements = 0;
  for (std::size_t i = 0; i < gradients_.size(); ++i) {
    const Gradient& gradient = gradients_[i];
    Track& track = tracks_[i];
    if (element_bytes(gradient.dtype) == 0)
      throw Error(Code::InvalidArgument, "gradient " + gradient.key + " has an unknown dtype");
    if (gradient.dtype == DType::Bool)
      throw Error(Code::InvalidArgument,
                  "gradient " + gradient.key + " is bool: a gradient is a number");
    if (gradient.position < 0)
      throw Error(Code::InvalidArgument,
                  "gradient " + gradient.key + " has a negative forward position");
    if (gradient.count > (std::size_t{1} << 40))
      throw Error(Code::InvalidArgument, "gradient " + gradient.key + " has " +
                                             std::to_string(gradient.count) +
                                             " elements: beyond any memory");
    track.compressor =
        rules.choose(gradient.key, gradient.count, gradient.dtype, gradient.compressor);
    track.reducer = track.compressor->reducer() ? track.compressor->reducer() : track.compressor;
    track.key = compressors::key_hash(gradient.key);
    const CompressorTraits& traits = track.compressor->traits();
    const bool dense = traits.name == "none";
    inputs.push_back({gradient.key, gradient.count, element_bytes(gradient.dtype),
                      gradient.position,
                      std::string(to_string(gradient.dtype)) + "|" + track.compressor->spec() +
                          (gradient.memory == MemoryType::Cuda ? "|cuda" : ""),
                      dense ? 1 : traits.block_count});
    elements += gradient.count;
    index_.emplace(gradient.key, i);
  }
  plan_ = scheduler::make_plan(inputs, {options.bucket_bytes.value_or(sizes.bucket_bytes),
                                        options.slice_bytes.value_or(sizes.slice_bytes)});
  const auto policy = scheduler::parse_policy(options.policy.value_or(config.policy));
  scheduler::SchedulerOptions schedule;
  schedule.policy = policy;
  credit_bytes_ = options.credit_bytes.value_or(sizes.credit_bytes);
  schedule.credit_bytes = credit_bytes_;
  scheduler_ = std::make_unique<scheduler::Scheduler>(schedule);
  description_ = "operator " + std::string(to_string(op_)) + ", seed " + std::to_string(seed_) +
                 "\n" + scheduler::describe(inputs, plan_);
  plan_.hash = runtime::mix(plan_.hash, compressors::key_hash(description_));

  slices_.resize(plan_.slices.size());
  for (std::uint32_t s = 0; s < slices_.size(); ++s) {
    auto& slice = slices_[s];
    for (const auto& segment : plan_.slices[s].segments) {
      if (!slice.gradients.empty() && slice.gradients.back() == segment.gradient) continue;
      slice.gradients.push_back(segment.gradient);
      slice.label += (slice.label.empty() ? "" : ",") + gradients_[segment.gradient].key;
      tracks_[segment.gradient].slices.push_back(s);
    }
  }
  const auto ranks = static_cast<std::uint64_t>(parent_->group->size());
  dense_bytes_per_step_ = 2 * (ranks - 1) * elements * 4 / ranks;
  build_states();
}

void ExchangeState::build_states() {
  const auto on_device = [](const Gradient& gradient) {
    return gradient.memory == MemoryType::Cuda;
  };
  if (std::ranges::any_of(gradients_, on_device))
    device_ = runtime::open_device_gradients(session_->engine(), slices_.size());
  for (std::size_t i = 0; i < tracks_.size(); ++i) {
    Track& track = tracks_[i];
    const std::size_t count = gradients_[i].count,
                      bytes = count * element_bytes(gradients_[i].dtype);
    runtime::DeviceGradients* const device = device_of(i);
    const auto make_state = [&](const Compressor& compressor) {
      return device != nullptr ? device->make_state(compressor, count)
                               : compressor.make_state(count);
    };
    const CompressorTraits& traits = track.compressor->traits();
    if (traits.name != "none") track.state = make_state(*track.compressor);
    if (traits.aggregation == Aggregation::Recompress)
      track.reducer_state = make_state(*track.reducer);
    if (device != nullptr) {
      track.result = device->allocate(bytes);
    } else {
      track.host_result.resize(bytes);
      track.result = track.host_result.data();
    }
  }
}

void ExchangeState::agree(Communicator communicator) {
  struct Entry {
    std::uint64_t hash, id;
  };
  const auto& parent = *parent_->group;
  Entry mine{plan_.hash, 0};
  auto& engine = session_->engine();
  session_->run_on_engine([&] { mine.id = engine.new_group_id(); });
  std::vector<Entry> all(static_cast<std::size_t>(parent.size()));
  communicator.all_gather(&mine, all.data(), sizeof(Entry), DType::UInt8).wait();
  for (int r = 0; r < parent.size(); ++r)
    if (all[static_cast<std::size_t>(r)].hash != all[0].hash)
      report_difference(communicator, description_, r);
  const auto id = static_cast<std::uint32_t>(all[0].id);
  if (id == 0)
    throw Error(Code::Unsupported,
                "rank " + std::to_string(parent.world(0)) +
                    " has been the first of too many groups: make fewer exchanges");
  if (device_) {
    device_->connect(*session_, parent_->group);
    if (const auto layout = device_->layout_digest(); layout != 0)
      plan_.hash = runtime::mix(plan_.hash, layout);
  }
  group_ = std::make_shared<ExchangeGroup>(*this, id, parent.rank(), parent.members());
  if (device_) {
    std::vector<std::shared_ptr<const runtime::SliceJob>> jobs;
    for (std::uint32_t slice = 0; slice < slices_.size(); ++slice)
      if (auto job = make_job(slice); job->device != nullptr) jobs.push_back(std::move(job));
    device_->prepare(jobs, credit_bytes_);
  }
  session_->run_on_engine([&] {
    begin_round(0, 0);
    engine.add_group(group_);  // peers may have started slices already
  });
}

/// Rank 0's description and that of the first rank that differs go to everybody, so that all say
/// the same.
void ExchangeState::report_difference(Communicator& communicator, const std::string& mine,
                                      int other) {
  const auto text_of = [&](int rank) {
    std::uint64_t bytes = communicator.rank() == rank ? mine.size() : 0;
    communicator.broadcast(&bytes, sizeof(bytes), DType::UInt8, rank).wait();
    std::string text = communicator.rank() == rank ? mine : std::string();
    text.resize(bytes);
    communicator.broadcast(text.data(), bytes, DType::UInt8, rank).wait();
    return text;
  };
  const std::string first = text_of(0), second = text_of(other);
  throw Error(Code::Mismatch, "the gradient exchange differs between rank 0 (mine) and rank " +
                                  std::to_string(other) +
                                  " (theirs): " + scheduler::first_difference(first, second));
}

std::size_t ExchangeState::index_of(std::string_view key) const {
  auto it = index_.find(std::string(key));
  if (it == index_.end())
    throw Error(Code::InvalidArgument,
                "no gradient is registered under the key '" + std::string(key) + "'");
  return it->second;
}

// ---- steps ----

bool ExchangeState::all_submitted_and_done() const {
  return user_submitted_ == tracks_.size() &&
         std::all_of(tracks_.begin(), tracks_.end(),
                     [](const Track& track) { return track.work->done(); });
}

void ExchangeState::check_memory(const Gradient& gradient, const void* data, Stream stream) const {
  const std::string name = "gradient " + gradient.key;
  if (gradient.memory == MemoryType::Cuda) {
    if (gradient.count > 0) device_->check_memory(data, name);
  } else if (stream.handle != nullptr) {
    throw Error(Code::InvalidArgument,
                name +
                    " is in host memory, which has no stream; if it is on a device, register it "
                    "so (Gradient::memory)");
  } else if (runtime::is_device_memory(data)) {
    throw Error(Code::InvalidArgument, name +
                                           " was registered in host memory, but data is in "
                                           "device memory (Gradient::memory)");
  }
}

Work ExchangeState::submit(std::size_t index, void* data, Stream stream) {
  if (index >= gradients_.size())
    throw Error(Code::InvalidArgument, "gradient index " + std::to_string(index) +
                                           " is outside 0.." +
                                           std::to_string(gradients_.size() - 1));
  const Gradient& gradient = gradients_[index];
  if (data == nullptr && gradient.count > 0)
    throw Error(Code::InvalidArgument, "gradient " + gradient.key + ": data is null");
  if (reinterpret_cast<std::uintptr_t>(data) % element_bytes(gradient.dtype) != 0)
    throw Error(Code::InvalidArgument, "gradient " + gradient.key + ": data is not aligned to " +
                                           std::string(to_string(gradient.dtype)));
  check_memory(gradient, data, stream);
  std::lock_guard lock(mutex_);
  if (all_submitted_and_done()) {
    for (const Track& track : tracks_)
      if (Status status = track.work->status(); !status.is_ok())
        throw Error(Status(Code::InvalidState,
                           "the step has failed (" + status.message() +
                               "): call rollback() before the next submit",
                           {}, status.rank()));
    next_round(true);
  }
  Track& track = tracks_[index];
  if (track.work)
    throw Error(Code::InvalidState, "gradient " + gradient.key +
                                        " has been submitted in this step already; " +
                                        what_is_missing());
  auto work = std::make_shared<GradientWork>(weak_from_this(), index, session_->config().timeout);
  const auto submit = [self = shared_from_this(), index, data, work](const Status& ready) {
    self->on_submit(index, data, work, ready);
  };
  if (runtime::DeviceGradients* const device = device_of(index))
    device->when_reached(stream, submit);
  else
    session_->engine().submit(runtime::make_command([submit] { submit(Status::ok()); }));
  track.work = work;
  ++user_submitted_;
  return Work(std::move(work));
}

/// "first, second and 7 more": those of `among` that have not been submitted; empty if all have.
template <class Gradients>
std::string ExchangeState::missing_keys(const Gradients& among) const {
  std::string text;
  int more = 0;
  for (const std::size_t i : among) {
    if (tracks_[i].work) continue;
    if (text.size() > 200)
      ++more;
    else
      text += (text.empty() ? "" : ", ") + gradients_[i].key;
  }
  return text + (more > 0 ? " and " + std::to_string(more) + " more" : "");
}

std::string ExchangeState::what_is_missing() const {
  const std::string keys = missing_keys(std::views::iota(std::size_t{0}, tracks_.size()));
  return keys.empty() ? "some are still on their way: wait for them first"
                      : "not submitted yet: " + keys;
}

void ExchangeState::wait(std::size_t index) {
  if (index >= gradients_.size())
    throw Error(Code::InvalidArgument, "gradient index " + std::to_string(index) +
                                           " is outside 0.." +
                                           std::to_string(gradients_.size() - 1));
  std::shared_ptr<WorkState> work;
  {
    std::lock_guard lock(mutex_);
    work = tracks_[index].work;
  }
  if (!work)
    throw Error(Code::InvalidState,
                "gradient " + gradients_[index].key + " has not been submitted in this step");
  Work(std::move(work)).wait();
}

void ExchangeState::check_companions(std::size_t gradient, const WorkState& work) const {
  std::set<std::size_t> companions;
  for (const std::uint32_t slice : tracks_[gradient].slices)
    companions.insert(slices_[slice].gradients.begin(), slices_[slice].gradients.end());
  std::lock_guard lock(mutex_);
  if (work.done()) return;  // perhaps of a step that is over
  const std::string missing = missing_keys(companions);
  if (!missing.empty())
    throw Error(Code::Timeout,
                "gradient " + gradients_[gradient].key + " has waited for " +
                    std::to_string(session_->config().timeout.count()) +
                    " ms for those that it travels with; not submitted yet: " + missing);
}

std::vector<std::shared_ptr<WorkState>> ExchangeState::works() const {
  std::vector<std::shared_ptr<WorkState>> works;
  for (const Track& track : tracks_)
    if (track.work) works.push_back(track.work);
  return works;
}

void ExchangeState::wait_all() {
  std::unique_lock lock(mutex_);
  const auto pending = works();
  lock.unlock();
  for (const auto& work : pending) work->wait();
  for (const auto& work : pending)
    if (Status status = work->status(); !status.is_ok()) throw Error(status);
}

void ExchangeState::commit() {
  {
    std::lock_guard lock(mutex_);
    if (user_submitted_ == 0) return;
    if (user_submitted_ < tracks_.size())
      throw Error(Code::InvalidState, "commit: the step is not complete; " + what_is_missing());
  }
  wait_all();
  std::lock_guard lock(mutex_);
  next_round(true);
}

void ExchangeState::rollback() {
  std::unique_lock lock(mutex_);
  const auto pending = works();
  const std::uint64_t round = user_round_;
  lock.unlock();
  const bool done =
      pending.size() == tracks_.size() &&
      std::all_of(pending.begin(), pending.end(), [](const auto& work) { return work->done(); });
  if (!done) {
    const Status status(Code::Aborted,
                        "rank " + std::to_string(group_->rank()) + " has rolled the step back");
    session_->run_on_engine([&] {
      session_->engine().fail_operation(*group_, {group_->id(), 0, round, 0}, status, true);
    });
  }
  for (const auto& work : pending) work->wait_for(std::chrono::nanoseconds::max());
  if (device_ && parent_->group->failure().is_ok()) device_->recover();
  lock.lock();
  next_round(false);
}

void ExchangeState::next_round(bool commit) {
  for (Track& track : tracks_) {
    for (CompressorState* state : {track.state.get(), track.reducer_state.get()}) {
      if (state == nullptr) continue;
      commit ? state->commit() : state->rollback();
    }
    track.work = nullptr;
  }
  user_submitted_ = 0;
  ++user_round_;
  if (commit) {
    ++user_step_;
    ++committed_steps_;
  }
  session_->engine().submit(
      runtime::make_command([self = shared_from_this(), round = user_round_, step = user_step_] {
        self->begin_round(round, step);
      }));
}

ExchangeStatistics ExchangeState::statistics() const {
  std::lock_guard lock(mutex_);
  ExchangeStatistics statistics;
  statistics.steps = committed_steps_ + (all_submitted_and_done() ? 1 : 0);
  statistics.sent_bytes = group_->sent_bytes.load();
  statistics.dense_bytes = dense_bytes_per_step_ * statistics.steps;
  statistics.slices = slice_count_.load();
  statistics.overdrawn_slices = overdrawn_count_.load();
  return statistics;
}

}  // namespace tersum
