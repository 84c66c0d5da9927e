#include "cuda/copy_engines.hpp"

#include <cuda_runtime_api.h>

#include "cuda/collective_kernels.hpp"
#include "cuda/collective_plan.hpp"
#include "cuda/error.hpp"
#include "tersum/error.hpp"

namespace tersum::gpu {
namespace {

struct Region {
  const std::byte* begin;
  std::uint64_t bytes;

  bool meets(const Region& other) const noexcept {
    return begin < other.begin + other.bytes && other.begin < begin + bytes;
  }
  friend bool operator==(const Region&, const Region&) = default;
};

Region sent_by(const Group& group, const Exchange& exchange) noexcept {
  const Range& run = exchange.send[1 - group.rank];
  return {exchange.input + run.offset, run.bytes};
}

/// Of what comes from the peer, or of the reduction with it.
Region received_by(const Group& group, const Exchange& exchange) noexcept {
  const int peer = 1 - group.rank;
  return {exchange.output + exchange.place[exchange.combine ? group.rank : peer].offset,
          exchange.place[peer].bytes};
}

}  // namespace

CopyEngines::CopyEngines(const PeerSettings& settings)
    : shape_(slice_shape(settings)), blocks_(settings.slice_blocks) {}

void CopyEngines::run(const Group& group, const Exchange& exchange, DType dtype,
                      StreamView stream) const {
  const int rank = group.rank;
  const Region sent = sent_by(group, exchange), received = received_by(group, exchange);
  SliceExchange slices{};
  slices.own = exchange.input + exchange.send[rank].offset;
  slices.output = const_cast<std::byte*>(received.begin);
  slices.kept = exchange.output + exchange.place[rank].offset;
  slices.sent_bytes = sent.bytes;
  slices.received_bytes = received.bytes;
  if (!exchange.combine && slices.own != slices.kept) {
    slices.kept_bytes = exchange.place[rank].bytes;
  }
  slices.shape = shape_;
  slices.combine = exchange.combine;
  slices.aligned = exchange.aligned;
  slices.in_place = sent.meets(received);
  const Region kept{slices.kept, slices.kept_bytes};
  if (sent.meets(kept) || (slices.in_place && sent != received)) {
    throw Error(Code::InvalidArgument, "input and output overlap, but are not in place");
  }
  slices.arithmetic = exchange.arithmetic;
  const auto sides = {&copies_, &signals_, &credits_};
  const bool copies = sent.bytes > 0;
  if (copies) {
    forked_.record(stream);
    for (const Side* side : sides) side->stream.wait(forked_);
    copy_slices(group, sent.begin, sent.bytes, dtype);
  }
  launch_slices(group, slices, dtype, blocks_, stream);
  if (!copies) return;
  for (const Side* side : sides) {
    side->reached.record(side->stream);
    stream.wait(side->reached);
  }
}

void CopyEngines::copy_slices(const Group& group, const std::byte* input, std::uint64_t bytes,
                              DType dtype) const {
  const bool whole_words = reinterpret_cast<std::uintptr_t>(input) % 4 == 0;
  std::byte* staging = group.arena[1 - group.rank] + group.slices_offset;
  const std::uint32_t last = shape_.count(bytes) - 1;
  for (std::uint32_t index = 0; index <= last; ++index) {
    const Range slice = shape_.slice(bytes, index);
    std::byte* to = staging + shape_.slot(index) * shape_.slice_bytes;
    if (shape_.reuses_slot(index)) {
      launch_slot_wait(group, index + 1 - shape_.slots, credits_.stream);
      credits_.reached.record(credits_.stream);
      copies_.stream.wait(credits_.reached);
    }
    if (whole_words) {
      check(cudaMemcpyAsync(to, input + slice.offset, slice.bytes, cudaMemcpyDeviceToDevice,
                            copies_.stream.get()),
            "copy to the peer");
    } else {
      launch_slice_copy(to, input + slice.offset, slice.bytes, dtype, copies_.stream);
    }
    if (index == last) break;
    copies_.reached.record(copies_.stream);
    signals_.stream.wait(copies_.reached);
    launch_slice_signal(group, signals_.stream);
  }
  check(
      cudaMemcpyAsync(reinterpret_cast<Board*>(group.arena[1 - group.rank])->run_full + group.rank,
                      &group.progress->run_number, sizeof(std::uint32_t), cudaMemcpyDeviceToDevice,
                      copies_.stream.get()),
      "copy of a run's number to the peer");
}

}  // namespace tersum::gpu
