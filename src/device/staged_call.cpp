#include "src/device/staged_call.hpp"

#include <algorithm>
#include <deque>
#include <utility>

namespace tersum::runtime {
namespace {

constexpr std::size_t kSmallestSlice = 256 * 1024;  // bytes of a run: below, slices cost more
constexpr std::size_t kSlicesWanted = 8;            // so many let copies and wire overlap
constexpr std::size_t kWindow = 3;  // messages of a send or receive under way; fewer than slots
constexpr std::uint64_t kMatchedHop = 1, kFirstDataHop = 2;  // of sends and receives

}  // namespace

StagedShape::StagedShape(const DeviceCall& call, int rank, int size) {
  const auto ranks = static_cast<std::size_t>(size);
  const bool is_root = call.peer == rank;
  switch (call.kind) {
    case CallKind::AllReduce:
      out_runs = in_runs = 1;
      return;
    case CallKind::ReduceScatter:
      out_runs = most_runs = ranks;
      in_runs = 1;
      return;
    case CallKind::AllGather:
      out_runs = 1;
      in_runs = most_runs = ranks;
      return;
    case CallKind::Broadcast:
      (is_root ? out_runs : in_runs) = 1;
      return;
    case CallKind::Reduce:
      out_runs = 1;
      in_runs = is_root ? 1 : 0;
      return;
    case CallKind::AllToAll:
      out_runs = in_runs = most_runs = ranks;
      return;
    case CallKind::PointToPoint:
      (call.sending ? out_runs : in_runs) = 1;
      return;
    default:
      throw Error(Code::Unsupported,
                  std::string(to_string(call.kind)) + " does not work on device memory yet");
  }
}

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
  const std::size_t wanted = std::max(call_.count / kSlicesWanted, kSmallestSlice / element);
  const std::size_t most = std::min(fits, wanted);
  const Partition parts{call_.count, static_cast<int>((call_.count + most - 1) / most)};
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
    if (shape_.out_runs > 0) slice.out = owner_.out_lane().reserve();
    if (shape_.in_runs > 0) slice.in = owner_.in_lane().reserve();
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
  const Runs runs{shape_.out_runs, run_bytes(slice), call_.count * element_bytes(call_.dtype)};
  expect_notice([&] { owner_.out_lane().copy(slice.out, input, runs, slice.has_arrived); });
}

void StagedCall::copy_in(StagedSlice& slice, std::byte* output) {
  const Runs runs{shape_.in_runs, run_bytes(slice), call_.count * element_bytes(call_.dtype)};
  expect_notice([&] { owner_.in_lane().copy(slice.in, output, runs, slice.was_copied); });
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
      return all_reduce(op, reduction, algorithm_);
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
