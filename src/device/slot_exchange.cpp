#include "src/device/slot_exchange.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <exception>

#include "cuda/error.hpp"
#include "cuda/rank_sum.hpp"
#include "src/collectives/collectives.hpp"
#include "src/device/set_up.hpp"
#include "src/device/staged_call.hpp"
#include "src/session.hpp"

namespace tersum::runtime {
namespace {

constexpr std::size_t kAlignment = 16;  // elements: then shares are aligned as the tensor is
constexpr std::uint64_t kScatterHop = 0, kGatherHop = 1;

std::size_t round_up(std::size_t value, std::size_t to) {
  return (value + to - 1) / to * to;
}

/// A slice cut into one share for each rank.
struct Shares {
  std::size_t count;
  int ranks;
  std::size_t begin(int rank) const {
    const Partition blocks{(count + kAlignment - 1) / kAlignment, ranks};
    return std::min(count, blocks.offset(rank) * kAlignment);
  }
  std::size_t size(int rank) const { return begin(rank + 1) - begin(rank); }
};

/// A stream that a coroutine waits for.
struct Arrival final : StreamListener {
  explicit Arrival(StagingOwner& o) : owner(o) {}
  void on_reached(const Status& status) noexcept override {
    owner.post([this, status] { event.happen(status); });
  }
  StagingOwner& owner;
  ExternalEvent event;
};

}  // namespace

SlotExchange::SlotExchange(const Session& session, const std::shared_ptr<Group>& group,
                           StagingOwner& owner, int device)
    : owner_(owner) {
  Engine& engine = session.engine();
  if (!agree(session, group, engine.transport().capabilities().device_memory))
    throw Error(Code::Unsupported,
                "TERSUM_DEVICE_STAGING=ucx: the UCX of some rank cannot move device memory; use a "
                "UCX built with CUDA, or pinned");
  OutLane& out = owner.out_lane();
  InLane& in = owner.in_lane();
  inbox_bytes_ =
      round_up(out.slot_bytes() + static_cast<std::size_t>(group->size()) * 2 * 256, 256);
  inbox_ = gpu::DeviceBuffer(inbox_bytes_ * static_cast<std::size_t>(out.slots()));
  gpu::load_reduce_runs();
  std::exception_ptr failure;
  session.run_on_engine([&] {
    try {
      gpu::check(cudaSetDevice(device), "cudaSetDevice");  // for kernels, and for UCX
      out.set_registration(engine.transport().register_memory(out.memory()));
      in.set_registration(engine.transport().register_memory(in.memory()));
      inbox_registration_ = engine.transport().register_memory(inbox_);
    } catch (...) {
      failure = std::current_exception();
    }
  });
  if (failure) std::rethrow_exception(failure);
  run_operation(session, group, 0, [this](Operation& op) { return warm_up(op); });
}

Task<> SlotExchange::warm_up(Operation& op) {
  const OutLane& out = owner_.out_lane();
  const InLane& in = owner_.in_lane();
  const auto ranks = static_cast<std::size_t>(op.size());
  const std::size_t bytes = out.slot_bytes() / ranks;
  for (int slot = 0; slot < out.slots(); ++slot) {
    Messages sends(ranks), receives(ranks);
    for (std::size_t r = 0; r < ranks; ++r) {
      const std::size_t at = static_cast<std::size_t>(slot) * out.slot_bytes() + r * bytes;
      sends[r] = {out.memory(), true};
      receives[r] = {in.memory(), true};
      for (Buffer* buffer : {&sends[r].buffer, &receives[r].buffer}) {
        buffer->data = static_cast<std::byte*>(buffer->data) + at;
        buffer->bytes = bytes;
      }
    }
    Task<> moving = move(op, static_cast<std::uint64_t>(slot), sends, receives);
    co_await moving;
  }
}

Buffer SlotExchange::inbox_part(const StagedSlice& slice, std::size_t offset,
                                std::size_t bytes) const noexcept {
  std::byte* base = inbox_.data() + owner_.out_lane().index_of(slice.out) * inbox_bytes_;
  return {bytes == 0 ? nullptr : base + offset, bytes, MemoryType::Cuda, inbox_registration_};
}

Task<> SlotExchange::run(Operation& op, const DeviceCall& call, const StagedSlice& slice) {
  switch (call.kind) {
    case CallKind::AllGather:
    case CallKind::AllToAll:
      return gather(op, call, slice);
    case CallKind::Broadcast:
      return broadcast(op, call, slice);
    default:
      return reduce(op, call, slice);
  }
}

Task<> SlotExchange::move(Operation& op, std::uint64_t hop, const Messages& sends,
                          const Messages& receives) {
  const int ranks = op.size(), rank = op.rank();
  std::vector<Transfer> transfers;
  for (int d = 1; d < ranks; ++d) {
    const int from = (rank + ranks - d) % ranks;
    const Message& message = receives[static_cast<std::size_t>(from)];
    if (message.travels) transfers.push_back(op.receive(from, hop, message.buffer));
  }
  for (int d = 1; d < ranks; ++d) {
    const int to = (rank + d) % ranks;
    const Message& message = sends[static_cast<std::size_t>(to)];
    if (message.travels) transfers.push_back(op.send(to, hop, message.buffer));
  }
  for (auto& transfer : transfers) co_await transfer;
}

/// Returns when all that is in the stream now is done.
Task<> SlotExchange::reach(Operation& op) {
  Arrival arrival(owner_);
  notify(stream_, arrival);
  auto reached = arrival.event.in(op);
  co_await reached;
}

/// All-reduce, reduce-scatter and reduce: everybody's values of a share go to its owner, who adds
/// them; then the sums go where they are wanted.
Task<> SlotExchange::reduce(Operation& op, const DeviceCall& call, const StagedSlice& slice) {
  const OutLane& out = owner_.out_lane();
  const InLane& in = owner_.in_lane();
  const int ranks = op.size(), rank = op.rank();
  const std::size_t element = element_bytes(call.dtype);
  const bool given = call.kind == CallKind::ReduceScatter;  // the shares, as runs of the input
  const Shares shares{slice.count, ranks};
  const auto offset = [&](int r) {
    return (given ? static_cast<std::size_t>(r) * slice.count : shares.begin(r)) * element;
  };
  const auto bytes = [&](int r) { return (given ? slice.count : shares.size(r)) * element; };
  const std::size_t stride = round_up(bytes(rank), 256);
  Messages sends(static_cast<std::size_t>(ranks)), receives(sends.size());
  for (int r = 0; r < ranks; ++r) {
    const auto i = static_cast<std::size_t>(r);
    sends[i] = {out.part(slice.out, offset(r), bytes(r)), true};
    receives[i] = {inbox_part(slice, i * stride, bytes(rank)), true};
  }
  Task<> scattering = move(op, kScatterHop, sends, receives);
  co_await scattering;

  const std::size_t at = given ? 0 : offset(rank);
  const Buffer result = slice.in.slot != nullptr
                            ? in.part(slice.in, at, bytes(rank))
                            : inbox_part(slice, static_cast<std::size_t>(rank) * stride,
                                         bytes(rank));  // its own run is in the out slot
  const gpu::RankRuns runs{static_cast<std::byte*>(inbox_part(slice, 0, inbox_bytes_).data), stride,
                           slice.out.slot + offset(rank), rank, ranks};
  gpu::reduce_runs(runs, result.data, bytes(rank) / element, call.dtype, call.op,
                   {call.pre_scale, call.post_scale}, stream_);
  Task<> adding = reach(op);
  co_await adding;
  if (given) co_return;

  const bool to_all = call.kind == CallKind::AllReduce;
  for (int r = 0; r < ranks; ++r) {
    const auto i = static_cast<std::size_t>(r);
    sends[i] = {result, to_all || r == call.peer};
    receives[i] = {{}, to_all || rank == call.peer};
    if (receives[i].travels) receives[i].buffer = in.part(slice.in, offset(r), bytes(r));
  }
  Task<> gathering = move(op, kGatherHop, sends, receives);
  co_await gathering;
  if (to_all) co_return;
  Task<> agreed = dissemination(op, 1);  // who is the root
  co_await agreed;
}

/// All-gather and all-to-all: a run of everybody; what goes to each is the same or a run of its
/// own.
Task<> SlotExchange::gather(Operation& op, const DeviceCall& call, const StagedSlice& slice) {
  const OutLane& out = owner_.out_lane();
  const InLane& in = owner_.in_lane();
  const std::size_t run = slice.count * element_bytes(call.dtype);
  const bool same = call.kind == CallKind::AllGather;
  Messages sends(static_cast<std::size_t>(op.size())), receives(sends.size());
  for (std::size_t r = 0; r < sends.size(); ++r) {
    sends[r] = {out.part(slice.out, same ? 0 : r * run, run), true};
    receives[r] = {in.part(slice.in, r * run, run), true};
  }
  const auto own = static_cast<std::size_t>(op.rank());
  gpu::check(cudaMemcpyAsync(receives[own].buffer.data, sends[own].buffer.data, run,
                             cudaMemcpyDeviceToDevice, stream_.get()),
             "cudaMemcpyAsync");
  Task<> moving = move(op, kScatterHop, sends, receives);
  co_await moving;
  Task<> copying = reach(op);
  co_await copying;
}

Task<> SlotExchange::broadcast(Operation& op, const DeviceCall& call, const StagedSlice& slice) {
  const std::size_t bytes = slice.count * element_bytes(call.dtype);
  const bool root = op.rank() == call.peer;
  Messages sends(static_cast<std::size_t>(op.size())), receives(sends.size());
  for (Message& message : sends) {
    message.travels = root;
    if (root) message.buffer = owner_.out_lane().part(slice.out, 0, bytes);
  }
  if (!root)
    receives[static_cast<std::size_t>(call.peer)] = {owner_.in_lane().part(slice.in, 0, bytes),
                                                     true};
  Task<> moving = move(op, kScatterHop, sends, receives);
  co_await moving;
  Task<> agreed = dissemination(op, 1);
  co_await agreed;
}

}  // namespace tersum::runtime
