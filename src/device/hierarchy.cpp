#include "src/device/hierarchy.hpp"

#include <algorithm>
#include <utility>

#include "cuda/widen.hpp"
#include "src/device/set_up.hpp"
#include "src/reduce.hpp"
#include "src/session.hpp"

namespace tersum::runtime {
namespace {

constexpr std::size_t kShareAlignment = 16;         // elements, so that shares are aligned, too
constexpr std::size_t kWholeBytes = 32 * 1024;      // up to here shares are not worth their steps
constexpr std::size_t kSmallestShare = 256 * 1024;  // bytes
constexpr std::size_t kSlicesWanted = 16;
constexpr std::size_t kAhead = 6;  // slices reduced before the first is gathered; fewer than slots

}  // namespace

std::unique_ptr<Hierarchy> Hierarchy::open(const Session& session,
                                           const std::shared_ptr<Group>& group, StagingRoom& room) {
  const auto layout = layout_of(session, *group);
  if (!layout) return nullptr;
  auto host = split_group(session, group, layout->host.front(), group->rank());
  auto counterparts = split_group(session, group, layout->counterparts.front(), group->rank());
  counterparts->count_for(group);
  Engine& engine = session.engine();
  session.run_on_engine([&] {
    engine.add_group(host);
    engine.add_group(counterparts);
  });
  std::unique_ptr<Hierarchy> hierarchy;
  try {
    hierarchy.reset(new Hierarchy(session, host, counterparts, room));
  } catch (const Error& error) {  // on all ranks of this host
    if (error.code() != Code::Unsupported) throw;
  }
  if (agree(session, group, hierarchy != nullptr)) return hierarchy;
  session.run_on_engine([&] {
    engine.remove_group(host->id());
    engine.remove_group(counterparts->id());
  });
  return nullptr;
}

Hierarchy::Hierarchy(const Session& session, std::shared_ptr<Group> host,
                     std::shared_ptr<Group> counterparts, StagingRoom& room)
    : host_(std::move(host)),
      counterparts_(std::move(counterparts)),
      room_(room),
      links_(take_peer_links(session, host_, LinkUse::Calls)),
      peers_(links_->peers),
      brought_in_(kAhead + 1) {
  if (room_.memory != SlotMemory::Pinned) return;
  room_.widen(host_->size());
  gpu::load_widen_halves();
}

void Hierarchy::fail(Engine& engine, const Status& status) const {
  engine.fail_group(*host_, status, false);
  engine.fail_group(*counterparts_, status, false);
}

void Hierarchy::close(Engine& engine) const {
  engine.submit(make_command([&engine, host = host_->id(), counterparts = counterparts_->id()] {
    engine.remove_group(host);
    engine.remove_group(counterparts);
  }));
}

bool Hierarchy::suits(const DeviceCall& call) const noexcept {
  if (call.kind != CallKind::AllReduce) return false;
  if (is_half(call.dtype)) return room_.memory == SlotMemory::Pinned;
  return is_floating(call.dtype) || call.op != ReduceOp::Average;
}

std::size_t Hierarchy::unit() const noexcept {
  return kShareAlignment * static_cast<std::size_t>(host_->size());
}

std::unique_ptr<StagedCall> Hierarchy::make_call(StagingOwner& owner, const DeviceCall& call,
                                                 Algorithm algorithm) const {
  DeviceCall middle = call;
  middle.pre_scale = 1;  // the first step does it
  const int all = host_->size() * counterparts_->size();
  if (is_half(call.dtype)) {
    middle.contributors = all;
  } else if (call.op == ReduceOp::Average) {  // of all ranks, not of the hosts
    middle.op = ReduceOp::Sum;
    middle.post_scale /= all;
  }
  auto staged = std::make_unique<StagedCall>(owner, counterparts_, middle, algorithm, host_);
  const std::size_t element = input_element_bytes(middle);
  const auto ranks = static_cast<std::size_t>(host_->size());
  const std::size_t shared =
      call.count * element_bytes(call.dtype) <= kWholeBytes ? 0 : call.count / unit() * unit();
  const std::size_t wanted = std::max(shared / ranks / kSlicesWanted, kSmallestShare / element);
  const std::size_t share =
      std::min(wanted, owner.out_lane().slot_bytes() / element) / kShareAlignment * kShareAlignment;
  for (std::size_t begin = 0; begin < shared; begin += share * ranks)
    staged->add_slice(begin, std::min(share, (shared - begin) / ranks));
  const std::size_t fits = owner.out_lane().slot_bytes() / element;
  for (std::size_t begin = shared; begin < call.count; begin += fits)
    staged->add_slice(begin, std::min(fits, call.count - begin));
  return staged;
}

bool Hierarchy::is_shared(const DeviceCall& call, const StagedSlice& slice) const noexcept {
  return call.count * element_bytes(call.dtype) > kWholeBytes &&
         slice.begin < call.count / unit() * unit();
}

void Hierarchy::enqueue(StagingOwner& owner, const DeviceCall& call, StagedCall& staged,
                        gpu::StreamView stream) {
  auto& slices = staged.slices();
  auto* output = static_cast<std::byte*>(call.output);
  const auto position = static_cast<std::size_t>(host_->rank());
  const std::size_t element = element_bytes(call.dtype);
  OutLane& out = owner.out_lane();
  InLane& in = owner.in_lane();
  const bool half = is_half(call.dtype);
  std::size_t done = 0;
  try {
    ready_.record(stream);
    stream_.wait(ready_);
    for (std::size_t step = 0; step < slices.size() + kAhead; ++step) {
      if (step < slices.size()) {
        StagedSlice& slice = slices[step];
        const std::size_t own = is_shared(call, slice) ? position * slice.count : 0;
        std::byte* const share = output + (slice.begin + own) * element;
        std::byte* const sums = half ? room_.sums.data() + step % 2 * out.slot_bytes() : share;
        if (half && step >= 2) stream_.wait(taken_out_[step % 2]);
        reduce(call, slice, sums);
        reduced_.record(stream_);
        out.wait(reduced_);
        staged.copy_out(slice, sums);
        if (half) taken_out_[step % 2].record(out.stream());
        staged.copy_in(slice, share);
        done = step + 1;
        brought_in_[step % brought_in_.size()].record(in.stream());
      }
      if (step >= kAhead) {
        stream_.wait(brought_in_[(step - kAhead) % brought_in_.size()]);
        gather(call, slices[step - kAhead]);
      }
    }
    staged.wait_for(stream_);
    ended_.record(stream_);
    stream.wait(ended_);
  } catch (const Error& error) {
    staged.enqueued(error.status(), done);
    throw;
  }
  staged.enqueued();
}

void Hierarchy::reduce(const DeviceCall& call, const StagedSlice& slice, std::byte* share) {
  const bool shared = is_shared(call, slice);
  const void* input =
      static_cast<const std::byte*>(call.input) + slice.begin * element_bytes(call.dtype);
  DType dtype = call.dtype;
  if (is_half(dtype)) {
    const std::size_t count = slice.count * static_cast<std::size_t>(shared ? host_->size() : 1);
    gpu::widen_halves(input, dtype, room_.widened.as<float>(), count, stream_);
    input = room_.widened.data();
    dtype = DType::Float32;
  }
  const ReduceOp op = call.op == ReduceOp::Average ? ReduceOp::Sum : call.op;
  const gpu::Scales scales{call.pre_scale, 1.0};
  if (shared)
    peers_.reduce_scatter(input, share, slice.count, dtype, op, stream_, scales);
  else
    peers_.all_reduce(input, share, slice.count, dtype, op, stream_, scales);
}

void Hierarchy::gather(const DeviceCall& call, const StagedSlice& slice) {
  if (!is_shared(call, slice)) return;  // every rank has all of it
  const std::size_t element = element_bytes(call.dtype);
  auto* output = static_cast<std::byte*>(call.output) + slice.begin * element;
  peers_.all_gather(output + static_cast<std::size_t>(host_->rank()) * slice.count * element,
                    output, slice.count, call.dtype, stream_);
}

}  // namespace tersum::runtime
