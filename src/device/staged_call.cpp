#include "src/device/staged_call.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <deque>
#include <numeric>
#include <utility>

#include "cuda/error.hpp"
#include "src/device/shape_check.hpp"

namespace tersum::runtime {
namespace {

constexpr std::size_t kSmallestSlice = 256 * 1024;  // bytes of a run: below, slices cost more
constexpr std::size_t kSlicesWanted = 8;            // so many let copies and wire overlap
constexpr std::size_t kUnevenSlice = 512 * 1024;    // bytes of a run, whatever its length is
constexpr std::size_t kWindow = 3;  // messages of a send or receive under way; fewer than slots
constexpr std::uint64_t kMatchedHop = 1, kFirstDataHop = 2;  // of sends and receives

std::size_t bytes_of(const std::vector<Run>& runs, std::size_t first) {
  return std::accumulate(runs.begin(), runs.begin() + static_cast<std::ptrdiff_t>(first),
                         std::size_t{0},
                         [](std::size_t bytes, const Run& run) { return bytes + run.bytes; });
}

}  // namespace

void StagedSlice::Notice::on_reached(const Status& status) noexcept {
  call->owner_.post([this, status] { call->on_notice(*this, status); });
}

StagedCall::StagedCall(StagingOwner& owner, std::shared_ptr<Group> group, const DeviceCall& call,
                       Algorithm algorithm, std::shared_ptr<Group> witnesses)
    : owner_(owner),
      group_(std::move(group)),
      witnesses_(std::move(witnesses)),
      call_(call),
      algorithm_(algorithm),
      shape_(call, group_->rank(), group_->size()) {
  work_->set_stage(Stage::Exchanging);
}

// ---- in the caller's thread ----

void StagedCall::cut() {
  const std::size_t element = element_bytes(call_.dtype);
  const std::size_t fits = owner_.out_lane().slot_bytes() / (element * shape_.most_runs);
  if (fits == 0)
    throw Error(Code::Unsupported, std::to_string(group_->size()) +
                                       " ranks are too many for one slot of pinned memory");
  const std::size_t wanted =
      call_.kind == CallKind::AllToAllV
          ? kUnevenSlice / element
          : std::max(shape_.longest / kSlicesWanted, kSmallestSlice / element);
  const std::size_t most = std::min(fits, wanted);
  const std::size_t count = std::max<std::size_t>(1, (shape_.longest + most - 1) / most);
  if (call_.kind == CallKind::AllToAllV) {  // the two ends of a run know its length, others do not
    for (std::size_t i = 0; i < count; ++i) add_slice(i * most, most);
    return;
  }
  const Partition parts{shape_.longest, static_cast<int>(count)};
  for (int part = 0; part < parts.parts; ++part) add_slice(parts.offset(part), parts.size(part));
}

void StagedCall::add_slice(std::size_t begin, std::size_t count) {
  StagedSlice& slice = slices_.emplace_back();
  slice.begin = begin;
  slice.count = count;
}

void StagedCall::reserve() {
  for (StagedSlice& slice : slices_) {
    slice.has_arrived.call = slice.was_copied.call = this;
    slice.has_arrived.slice = slice.was_copied.slice = &slice;
    slice.was_copied.inward = true;
    if (!shape_.out.empty()) slice.out = owner_.out_lane().reserve();
    if (!shape_.in.empty()) slice.in = owner_.in_lane().reserve();
  }
}

void StagedCall::start(Engine& engine, std::chrono::milliseconds timeout,
                       const Signature& signature) {
  const auto make = [&](const std::shared_ptr<Group>& group, Operation::Body body) {
    ++pending_;
    return std::make_shared<Operation>(engine, group, signature, std::make_shared<WorkState>(),
                                       timeout, std::move(body));
  };
  std::vector<std::shared_ptr<Operation>> operations;
  if (call_.kind == CallKind::PointToPoint) {
    operations.push_back(
        make(group_, [this](Operation& op) { return call_.sending ? send(op) : receive(op); }));
    operations.back()->on_end = [this](const Status& status) { exchange_ended(slices_, status); };
  } else {
    for (StagedSlice& slice : slices_) {
      operations.push_back(
          make(group_, [this, &slice](Operation& op) { return exchange(op, slice); }));
      operations.back()->on_end = [this, &slice](const Status& status) {
        exchange_ended(std::span(&slice, 1), status);
      };
    }
  }
  exchanging_ = static_cast<int>(operations.size());
  std::shared_ptr<Operation> confirmation;
  if (witnesses_) {
    confirmation = make(witnesses_, [this](Operation& op) { return confirm(op); });
    confirmation->on_end = [this](const Status& status) {
      if (!status.is_ok()) owner_.on_failed(*this, status);
      part_ended(status);
    };
  }
  engine.submit(make_command([this, &engine, operations, confirmation] {
    for (StagedSlice& slice : slices_)
      if (slice.in.slot != nullptr) owner_.in_lane().expect(slice.in, slice.vacant);
    if (confirmation) engine.start(confirmation);
    if (call_.kind == CallKind::PointToPoint)
      engine.start_pair(operations.front(), call_.peer, call_.sending);
    else
      engine.start_slices(operations);
  }));
}

template <class Enqueue>
void StagedCall::expect_notice(const Enqueue& enqueue) {
  ++pending_;  // before it can come
  try {
    enqueue();
  } catch (...) {
    --pending_;  // not the last: the enqueueing itself has not ended
    throw;
  }
}

void StagedCall::copy_out(StagedSlice& slice, const std::byte* input) {
  const auto runs = runs_in(shape_.out, slice, input_element_bytes(call_));
  expect_notice([&] { owner_.out_lane().copy(slice.out, input, runs, slice.has_arrived); });
}

void StagedCall::copy_in(StagedSlice& slice, std::byte* output) {
  const auto runs = runs_in(shape_.in, slice, element_bytes(call_.dtype));
  expect_notice([&] { owner_.in_lane().copy(slice.in, output, runs, slice.was_copied); });
}

void StagedCall::copy_own(gpu::StreamView stream) const {
  if (call_.receive_counts.empty()) return;
  const auto own = static_cast<std::size_t>(group_->rank());
  const std::size_t element = element_bytes(call_.dtype);
  const auto* from = static_cast<const std::byte*>(call_.input);
  if (call_.kind == CallKind::AllToAllV) from += shape_.out[own].offset * element;
  auto* const to = static_cast<std::byte*>(call_.output) + shape_.in[own].offset * element;
  const std::size_t bytes = call_.receive_counts[own] * element;
  if (bytes == 0 || from == to) return;
  gpu::check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream.get()),
             "cudaMemcpyAsync");
}

void StagedCall::wait_for(gpu::StreamView stream) {
  end_.call = this;
  expect_notice([&] { notify(stream, end_); });
}

void StagedCall::enqueued(const Status& status, std::size_t first) {
  owner_.post([this, status, first] {
    for (std::size_t i = first; i < slices_.size() && !status.is_ok(); ++i) {
      owner_.in_lane().forget(slices_[i].vacant);
      slices_[i].vacant.happen(status);
      slices_[i].arrived.happen(status);
    }
    part_ended(status);
  });
}

/// From where the first run's part of the slice begins.
std::vector<Run> StagedCall::runs_in(const std::vector<StagedRun>& runs, const StagedSlice& slice,
                                     std::size_t element) const {
  std::vector<Run> parts;
  parts.reserve(runs.size());
  for (const StagedRun& run : runs)
    parts.push_back({run.offset * element, run.part(slice.begin, slice.count) * element});
  return parts;
}

std::size_t StagedCall::run_bytes(const StagedSlice& slice) const noexcept {
  return slice.count * element_bytes(call_.dtype);
}

// ---- in the engine's thread ----

void StagedCall::on_notice(const StagedSlice::Notice& notice, const Status& status) {
  if (notice.inward)
    owner_.in_lane().on_copied(status);
  else if (notice.slice != nullptr)
    notice.slice->arrived.happen(status);
  part_ended(status);
}

void StagedCall::exchange_ended(std::span<const StagedSlice> slices, const Status& status) {
  if (!status.is_ok()) owner_.on_failed(*this, status);
  for (const StagedSlice& slice : slices) release(slice);
  if (--exchanging_ == 0 || !status.is_ok()) exchanged_.happen(status);
  part_ended(status);
}

void StagedCall::part_ended(const Status& status) {
  if (failure_.is_ok()) failure_ = status;
  if (--pending_ > 0) return;
  if (failure_.is_ok()) failure_ = owner_.outcome(*this);
  work_->complete(failure_);
  owner_.on_over(*this);
}

void StagedCall::release(const StagedSlice& slice) noexcept {
  if (slice.out.slot != nullptr) owner_.out_lane().release(slice.out);
  if (slice.in.slot != nullptr) owner_.in_lane().release(slice.in);
}

Task<> StagedCall::exchange(Operation& op, StagedSlice& slice) {
  if (slice.out.slot != nullptr) {
    auto arrival = slice.arrived.in(op);
    co_await arrival;
  }
  if (slice.in.slot != nullptr) {
    auto vacancy = slice.vacant.in(op);
    co_await vacancy;
  }
  Task<> moving = collective(op, slice);
  co_await moving;
}

/// A rank whose slices have failed lets streams go on, with anything in them: those who take that
/// for the result must hear of it before they believe it.
Task<> StagedCall::confirm(Operation& op) {
  auto exchanged = exchanged_.in(op);
  co_await exchanged;
  Task<> all = barrier(op);
  co_await all;
}

Task<> StagedCall::collective(Operation& op, StagedSlice& slice) {
  if (call_.kind == CallKind::Barrier) return barrier(op);
  if (!call_.receive_counts.empty()) return trade(op, slice);
  if (SlotExchange* on_device = owner_.slot_exchange()) return on_device->run(op, call_, slice);
  const Reduction reduction{.input = slice.out.slot,
                            .output = slice.in.slot,
                            .count = slice.count,
                            .dtype = call_.dtype,
                            .op = call_.op,
                            .pre_scale = call_.pre_scale,
                            .post_scale = call_.post_scale,
                            .may_spoil = true};
  const auto ranks = static_cast<std::size_t>(op.size());
  switch (call_.kind) {
    case CallKind::AllReduce:
      return call_.contributors > 0 ? all_reduce_partial(op, reduction, call_.contributors)
                                    : all_reduce(op, reduction, algorithm_);
    case CallKind::ReduceScatter:
      return reduce_scatter(op, reduction);
    case CallKind::AllGather: {
      std::vector<std::size_t> counts(ranks, slice.count);
      return all_gather(op, slice.out.slot, slice.in.slot, std::move(counts), call_.dtype);
    }
    case CallKind::Reduce:
      return reduce(op, reduction, call_.peer);
    case CallKind::AllToAll: {
      std::vector<std::size_t> counts(ranks, slice.count);
      return all_to_all(op, slice.out.slot, counts, slice.in.slot, counts, call_.dtype);
    }
    default: {
      std::byte* data = slice.out.slot != nullptr ? slice.out.slot : slice.in.slot;
      return broadcast(op, data, run_bytes(slice), call_.peer);
    }
  }
}

/// Runs of lengths of their own. The first slice sees to it that all ranks have come, and agree.
Task<> StagedCall::trade(Operation& op, StagedSlice& slice) {
  const int ranks = op.size(), rank = op.rank();
  const std::size_t element = element_bytes(call_.dtype);
  const auto out = runs_in(shape_.out, slice, element), in = runs_in(shape_.in, slice, element);
  std::vector<Transfer> transfers;
  for (int d = 1; d < ranks; ++d) {
    const int from = (rank + ranks - d) % ranks;
    const auto run = static_cast<std::size_t>(from);
    if (in[run].bytes > 0)
      transfers.push_back(
          op.receive(from, 0, owner_.in_lane().part(slice.in, bytes_of(in, run), in[run].bytes)));
  }
  for (int d = 1; d < ranks; ++d) {
    const int to = (rank + d) % ranks;
    const std::size_t run = out.size() == 1 ? 0 : static_cast<std::size_t>(to);
    if (out[run].bytes > 0)
      transfers.push_back(
          op.send(to, 0, owner_.out_lane().part(slice.out, bytes_of(out, run), out[run].bytes)));
  }
  if (&slice == &slices_.front()) {
    Task<> agreed = call_.kind == CallKind::AllToAllV
                        ? compare_counts(op, call_.send_counts, call_.receive_counts)
                        : barrier(op);
    co_await agreed;
  }
  for (auto& transfer : transfers) co_await transfer;
}

/// As the host's send: done when the receiver has it all and agrees about what it is.
Task<> StagedCall::send(Operation& op) {
  Transfer matched = op.receive(call_.peer, kMatchedHop, {});
  std::deque<std::pair<Transfer, StagedSlice*>> under_way;
  std::uint64_t hop = kFirstDataHop;
  for (StagedSlice& slice : slices_) {
    auto arrival = slice.arrived.in(op);
    co_await arrival;
    under_way.emplace_back(
        op.send(call_.peer, hop++, owner_.out_lane().part(slice.out, 0, run_bytes(slice))), &slice);
    if (under_way.size() < kWindow) continue;
    Transfer& oldest = under_way.front().first;
    co_await oldest;
    owner_.out_lane().release(under_way.front().second->out);
    under_way.pop_front();
  }
  for (auto& [transfer, slice] : under_way) {
    Transfer& next = transfer;
    co_await next;
  }
  co_await matched;
}

Task<> StagedCall::receive(Operation& op) {
  std::deque<std::pair<Transfer, StagedSlice*>> under_way;
  std::uint64_t hop = kFirstDataHop;
  for (StagedSlice& slice : slices_) {
    auto vacancy = slice.vacant.in(op);
    co_await vacancy;
    under_way.emplace_back(
        op.receive(call_.peer, hop++, owner_.in_lane().part(slice.in, 0, run_bytes(slice))),
        &slice);
    if (under_way.size() < kWindow) continue;
    Transfer& oldest = under_way.front().first;
    co_await oldest;
    owner_.in_lane().release(under_way.front().second->in);
    under_way.pop_front();
  }
  for (auto& [transfer, slice] : under_way) {
    Transfer& next = transfer;
    co_await next;
  }
  Transfer matched = op.send(call_.peer, kMatchedHop, {});
  co_await matched;
}

}  // namespace tersum::runtime
