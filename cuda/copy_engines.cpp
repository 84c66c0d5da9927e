#include "cuda/copy_engines.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>

#include "cuda/collective_kernels.hpp"
#include "cuda/collective_plan.hpp"
#include "cuda/error.hpp"

namespace tersum::gpu {
namespace {

SliceExchange slice_exchange(const Group& group, const Exchange& exchange,
                             const SliceShape& shape) {
  const int rank = group.rank, peer = 1 - rank;
  SliceExchange slices{};
  slices.own = exchange.input + exchange.send[rank].offset;
  slices.output = exchange.output + exchange.place[exchange.combine ? rank : peer].offset;
  slices.sent_bytes = exchange.send[peer].bytes;
  slices.received_bytes = exchange.place[peer].bytes;
  slices.kept = exchange.output + exchange.place[rank].offset;
  if (!exchange.combine && slices.own != slices.kept) {
    slices.kept_bytes = exchange.place[rank].bytes;
  }
  slices.shape = shape;
  slices.combine = exchange.combine;
  slices.aligned = exchange.aligned;
  slices.arithmetic = exchange.arithmetic;
  return slices;
}

}  // namespace

CopyEngines::CopyEngines(const PeerSettings& settings) : settings_(settings) {}

void CopyEngines::run(const Group& group, const Exchange& exchange, DType dtype,
                      StreamView stream) const {
  Exchange pushed, copied;
  split(exchange, settings_.push_share, pushed, copied);
  forked_.record(stream);
  for (const Side* side : {&copies_, &signals_, &credits_, &pushes_}) side->stream.wait(forked_);
  copy_slices(group, copied);
  launch_slices(group, slice_exchange(group, copied, slice_shape(settings_)), dtype,
                settings_.slice_blocks, stream);
  if (settings_.push_share > 0) {
    const int blocks = choose_chunks(pushed, settings_, group.size, settings_.push_share_blocks);
    launch_push(group, pushed, dtype, blocks, pushes_.stream);
  }
  for (const Side* side : {&copies_, &signals_, &credits_, &pushes_}) {
    side->reached.record(side->stream);
    stream.wait(side->reached);
  }
}

void CopyEngines::copy_slices(const Group& group, const Exchange& exchange) const {
  const int peer = 1 - group.rank;
  const SliceShape shape = slice_shape(settings_);
  std::byte* staging = group.arena[peer] + group.slices_offset;
  const Range& run = exchange.send[peer];
  const std::byte* input = exchange.input + run.offset;
  std::uint32_t index = 0;
  for (Range slice = next_slice({}, run.bytes, shape); slice.bytes > 0;
       slice = next_slice(slice, run.bytes, shape), ++index) {
    if (index == 0) launch_slot_wait(group, 0, copies_.stream);
    if (index >= shape.slots) {
      launch_slot_wait(group, index + 1 - shape.slots, credits_.stream);
      credits_.reached.record(credits_.stream);
      copies_.stream.wait(credits_.reached);
    }
    check(cudaMemcpyAsync(staging + index % shape.slots * shape.largest, input + slice.offset,
                          slice.bytes, cudaMemcpyDeviceToDevice, copies_.stream.get()),
          "copy to the peer");
    copies_.reached.record(copies_.stream);
    signals_.stream.wait(copies_.reached);
    launch_slice_signal(group, index, signals_.stream);
  }
}

}  // namespace tersum::gpu
