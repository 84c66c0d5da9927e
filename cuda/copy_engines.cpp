#include "cuda/copy_engines.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>

#include "cuda/collective_kernels.hpp"
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
    : slice_bytes_(settings.slice_bytes),
      slots_(static_cast<std::uint32_t>(settings.slices)),
      blocks_(settings.slice_blocks) {}

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
  slices.slice_bytes = slice_bytes_;
  slices.slots = slots_;
  slices.combine = exchange.combine;
  slices.aligned = exchange.aligned;
  slices.in_place = sent.meets(received);
  const Region kept{slices.kept, slices.kept_bytes};
  if (sent.meets(kept) || (slices.in_place && sent != received)) {
    throw Error(Code::InvalidArgument, "input and output overlap, but are not in place");
  }
  slices.arithmetic = exchange.arithmetic;
  forked_.record(stream);
  for (const Side* side : {&copies_, &credits_}) side->stream.wait(forked_);
  copy_slices(group, exchange, dtype);
  launch_slices(group, slices, dtype, blocks_, stream);
  for (const Side* side : {&copies_, &credits_}) {
    side->reached.record(side->stream);
    stream.wait(side->reached);
  }
}

void CopyEngines::copy_slices(const Group& group, const Exchange& exchange, DType dtype) const {
  const int peer = 1 - group.rank;
  const Region run = sent_by(group, exchange);
  const bool whole_words = reinterpret_cast<std::uintptr_t>(run.begin) % 4 == 0;
  auto& board = *reinterpret_cast<Board*>(group.arena[peer]);
  std::uint32_t index = 0;
  for (std::uint64_t start = 0; start < run.bytes; start += slice_bytes_, ++index) {
    const std::uint32_t slot = index % slots_;
    std::byte* to = group.arena[peer] + group.slices_offset + slot * slice_bytes_;
    const std::byte* from = run.begin + start;
    const std::uint64_t bytes = std::min<std::uint64_t>(run.bytes - start, slice_bytes_);
    std::uint32_t* full = &board.slice_full[slot].value;
    if (index >= slots_) {
      launch_slot_wait(group, index + 1 - slots_, credits_.stream);
      credits_.reached.record(credits_.stream);
      copies_.stream.wait(credits_.reached);
    }
    if (!whole_words) {
      launch_slice_copy(group, to, from, bytes, full, dtype, copies_.stream);
      continue;
    }
    const auto copy = [&](void* target, const void* source, std::size_t length) {
      check(cudaMemcpyAsync(target, source, length, cudaMemcpyDeviceToDevice, copies_.stream.get()),
            "copy to the peer");
    };
    copy(to, from, bytes);
    copy(full, &group.progress->one, sizeof(std::uint32_t));
  }
}

}  // namespace tersum::gpu
