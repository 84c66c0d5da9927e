#include "src/device/peer_exchange.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>

#include "cuda/error.hpp"
#include "src/collectives/collectives.hpp"
#include "src/device/set_up.hpp"
#include "src/session.hpp"

namespace tersum::runtime {
namespace {

/// What this rank sends to others in an exchange of the slice, headers included.
std::uint64_t sent_bytes(const SliceJob& job, std::uint64_t ranks) {
  if (job.dense) return 2 * (ranks - 1) * job.count() * element_bytes(job.dtype) / ranks;
  const auto parts = whole_parts(job);
  const std::uint64_t payloads = room_for(*job.compressor, parts);
  if (job.compressor->traits().aggregation == Aggregation::SparseMerge)
    return (ranks - 1) * payloads;
  return (ranks - 1) * (payloads + room_for(*job.reducer, parts)) / ranks;
}

}  // namespace

PeerExchange::PeerExchange(Session& session, std::shared_ptr<Group> group)
    : group_(std::move(group)), device_(gpu::current_device()), peers_(session, group_) {
  peers_.connect(true);
}

std::unique_ptr<PeerExchange> PeerExchange::open(Session& session,
                                                 const std::shared_ptr<Group>& group) {
  if (!session.share_a_host(*group)) return nullptr;
  try {
    return std::unique_ptr<PeerExchange>(new PeerExchange(session, group));
  } catch (const Error& error) {  // the same on all ranks
    if (error.code() != Code::Unsupported) throw;
    return nullptr;
  }
}

// ---- reductions ----

const gpu::CompressedMethod& PeerExchange::method_of(const SliceJob& job) {
  const auto found = methods_.find(job.compressor.get());
  if (found != methods_.end()) return found->second;
  return methods_.emplace(job.compressor.get(), gpu::CompressedMethod(job.compressor))
      .first->second;
}

/// What a slice can do before its turn's kernels, while those of the turn before run: all memory
/// that these use is there, and elements are in one place.
void PeerExchange::prepare(DeviceSlice& slice) {
  if (slice.job().dense) {
    if (slice.parts().size() > 1) slice.gather();
    return;
  }
  const gpu::CompressedMethod& method = method_of(slice.job());
  std::size_t workspace = 0;
  for (const Piece& piece : slice.parts()) {
    slice.input_of(piece);
    workspace = std::max(workspace, method.workspace_bytes(piece.count, group_->size()));
  }
  slice.values();
  slice.workspace(workspace);
}

void PeerExchange::deliver(DeviceSlice& slice) {
  if (slice.job().dense) {
    if (slice.parts().size() > 1) slice.scatter();
    return;
  }
  slice.store();
  slice.status().fetch(slice.stream());
}

void PeerExchange::reduce_dense(DeviceSlice& slice) {
  const SliceJob& job = slice.job();
  if (slice.parts().size() == 1) {
    const SlicePart& part = job.parts[0];
    peers_.peers().all_reduce(part.data, part.result, part.count, job.dtype, job.op,
                              slice.stream());
    return;
  }
  std::byte* const elements = slice.elements();
  peers_.peers().all_reduce(elements, elements, slice.count(), job.dtype, job.op, slice.stream());
}

void PeerExchange::reduce_compressed(DeviceSlice& slice) {
  const SliceJob& job = slice.job();
  const gpu::CompressedMethod& method = method_of(job);
  for (const Piece& piece : slice.parts()) {
    gpu::CompressedSlice run;
    run.input = slice.input_of(piece);
    run.output = slice.values_of(piece);
    run.count = piece.count;
    run.context = context_of(piece, static_cast<std::uint32_t>(group_->world()));
    if (method.twin().state_arrays() > 0) run.state = twin_state_of(piece.part->state);
    if (method.feeds_back_sums()) run.reducer_state = twin_state_of(piece.part->reducer_state);
    run.workspace = slice.workspace(method.workspace_bytes(piece.count, group_->size()));
    run.decoded = &slice.status();
    peers_.compressed().all_reduce(method, run, job.op, slice.stream());
  }
}

Task<> PeerExchange::exchange(DeviceSlice& slice) {
  Operation& op = slice.operation();
  Task<> turn = peers_.turns().take(op);
  co_await turn;
  {
    const gpu::DeviceGuard guard(device_);
    prepare(slice);
    slice.stream().wait(reduced_);
    slice.job().dense ? reduce_dense(slice) : reduce_compressed(slice);
    reduced_.record(slice.stream());
    deliver(slice);
  }
  op.set_stage(Stage::Exchanging);
  op.group().sent_bytes += sent_bytes(slice.job(), static_cast<std::uint64_t>(op.size()));
  StreamEvent done(slice.device().engine(), slice.device().events(), device_, slice.stream());
  peers_.turns().pass();
  co_await done.in(op);
  if (const Status status = peers_.peers().status(); !status.is_ok()) throw Error(status);
  if (!slice.job().dense)
    if (const Status status = slice.status().status(); !status.is_ok()) throw Error(status);
  op.set_stage(Stage::Decompressed);
}

}  // namespace tersum::runtime
