// Twin of topk (compressors/topk.cpp): the same selection, found in another way.
//
// One pass over memory adds the residual and marks in a bitmap every element that reaches a floor,
// guessed from the last step. If at least k elements do, and not too many, the k largest are among
// them (a count proves it, so the guess can cost time but never exactness), and all that follows
// works on these candidates only: their list in order of index (values from slots, where the pass
// has left them, since reading single elements again is slow), a radix select of 11 + 10 + 10 bits
// for the threshold, ranks by prefix sums, and the Elias-Fano code. Of a large gradient a small
// sample, taken before the pass, says whether the guess may hold, and gives a floor where it does
// not or there is none. Where the count proves nothing, or there is neither guess nor sample, a
// histogram of all elements gives the floor, or, where one bin holds more than the candidate list
// (many equal magnitudes), the exact threshold. Kernels that turn out not to be needed see it in
// the control block and end.
#include <cmath>

#include "compressors/keep_rule.hpp"
#include "cuda/block_scan.cuh"
#include "cuda/codec.cuh"
#include "cuda/kernels.hpp"
#include "cuda/topk_twin.hpp"
#include "cuda/twin_methods.hpp"

namespace tersum::gpu {
namespace {

constexpr int kThreads = 256;
constexpr unsigned kNarrowBlocks = 132 * 2;  // each adds a histogram to the global one
constexpr int kPartThreads = kCandidateTile / 4;

/// The next 10 bits of the threshold, from the candidates that have the known ones.
template <int kShift>
__global__ __launch_bounds__(kThreads) void narrow(SelectMemory memory) {
  __shared__ std::uint32_t histogram[kLowerBins];
  SelectControl* control = memory.control;
  const std::uint32_t known = control->prefix >> (kShift + 10);
  const std::uint32_t left = control->ties;
  std::uint32_t* const counts = control->candidate + kTopBins + (kShift == 10 ? 0 : kLowerBins);
  const std::uint32_t candidates = control->candidates;
  clear_histogram(histogram, kLowerBins);
  const auto count_one = [&](std::uint32_t value) {
    const std::uint32_t magnitude = value & kMagnitudeMask;
    if (magnitude >> (kShift + 10) == known) {
      atomicAdd(histogram + (magnitude >> kShift & (kLowerBins - 1)), 1u);
    }
  };
  const auto* quads = reinterpret_cast<const uint4*>(memory.value);
  const std::uint32_t stride = gridDim.x * kThreads;
  const std::uint32_t thread = blockIdx.x * kThreads + threadIdx.x;
#pragma unroll 4
  for (std::uint32_t q = thread; q < candidates / 4; q += stride) {
    const uint4 quad = quads[q];
    count_one(quad.x), count_one(quad.y), count_one(quad.z), count_one(quad.w);
  }
  if (thread < candidates % 4) count_one(memory.value[candidates - 1 - thread]);
  flush_histogram(histogram, kLowerBins, counts);
  if (!is_last_block(control->tickets + kNarrowTickets + (kShift == 10 ? 0 : 1), gridDim.x)) return;
  const BinOfKth found = find_bin(counts, kLowerBins, left);
  if (threadIdx.x != 0) return;
  control->prefix |= found.bin << kShift;
  control->ties = found.left;
}

/// Candidates above (high half) and at (low half) the threshold among a thread's four.
__device__ std::uint32_t count_four(const SelectMemory& memory, std::uint32_t first,
                                    std::uint32_t candidates, std::uint32_t threshold) {
  const auto count_one = [&](std::uint32_t value, std::uint32_t i) -> std::uint32_t {
    const std::uint32_t magnitude = value & kMagnitudeMask;
    if (i >= candidates || magnitude < threshold) return 0;
    return magnitude > threshold ? 0x10000u : 1u;
  };
  if (first >= candidates) return 0;
  const uint4 four = *reinterpret_cast<const uint4*>(memory.value + first);  // all in the array
  return count_one(four.x, first) + count_one(four.y, first + 1) + count_one(four.z, first + 2) +
         count_one(four.w, first + 3);
}

/// The floor that next time should give about 1.4 k candidates: this threshold, moved on as it has
/// moved since the last step (with error feedback it grows at first), less what gave the margin.
__device__ std::uint32_t next_floor(const SelectControl& control, std::uint32_t kept,
                                    std::uint32_t last_threshold) {
  const std::uint32_t threshold = control.prefix;
  if (threshold == 0 || threshold >= kInfinityBits) return 0;
  const float top = float_of(threshold);
  const float ratio = static_cast<float>(control.candidates) / static_cast<float>(kept);
  float factor = 0.9f;
  if (ratio > 1.05f && control.floor < threshold && control.floor != 0) {
    const float slope = logf(ratio) / logf(top / float_of(control.floor));
    factor = fminf(fmaxf(expf(-logf(1.4f) / slope), 0.6f), 0.98f);
  }
  if (last_threshold != 0) {
    const float growth = fminf(fmaxf(top / float_of(last_threshold), 0.7f), 1.5f);
    factor *= growth > 1 ? 1 + 0.8f * (growth - 1) : growth;
  }
  const std::uint32_t floor = bits_of(top * factor);
  return floor == 0 || floor >= kInfinityBits ? 0 : floor;
}

/// Counts per part of the candidates. The last block makes them the ranks of each part's first
/// elements, and guesses for the next step.
__global__ __launch_bounds__(kPartThreads) void rank_parts(SelectMemory memory, std::uint32_t kept,
                                                           std::uint32_t* hint) {
  SelectControl* control = memory.control;
  const std::uint32_t candidates = control->candidates;
  const std::uint32_t parts = (candidates + kCandidateTile - 1) / kCandidateTile;
  if (blockIdx.x >= parts) return;
  std::uint32_t total = 0;
  block_scan(count_four(memory, blockIdx.x * kCandidateTile + threadIdx.x * 4, candidates,
                        control->prefix),
             total);
  if (threadIdx.x == 0) memory.part_above[blockIdx.x] = total >> 16;
  if (threadIdx.x == 0) memory.part_equal[blockIdx.x] = total & 0xffffu;
  if (!is_last_block(control->tickets + kPartTicket, parts)) return;
  scan_array(memory.part_above, parts);
  scan_array(memory.part_equal, parts);
  if (threadIdx.x == 0 && hint != nullptr) {
    hint[kFloorHint] = next_floor(*control, kept, hint[kThresholdHint]);
    hint[kThresholdHint] = control->prefix;
    if (control->knowledge != Knowledge::Guessed) ++hint[kTopKMissesHint];
  }
}

/// Values and indices of the k largest in order. With feedback the bitmap of candidates becomes the
/// mask of what is sent: the others leave it.
__global__ __launch_bounds__(kPartThreads) void choose(SelectMemory memory, bool make_mask,
                                                       std::uint32_t* values) {
  const SelectControl* control = memory.control;
  const std::uint32_t candidates = control->candidates;
  const std::uint32_t start = blockIdx.x * kCandidateTile;
  if (start >= candidates) return;
  const std::uint32_t threshold = control->prefix;
  const std::uint32_t ties = control->ties;
  const std::uint32_t first = start + threadIdx.x * 4;
  const std::uint32_t counts = count_four(memory, first, candidates, threshold);
  std::uint32_t total = 0;
  const std::uint32_t before = block_scan(counts, total) - counts;
  std::uint32_t above = memory.part_above[blockIdx.x] + (before >> 16);
  std::uint32_t equal = memory.part_equal[blockIdx.x] + (before & 0xffffu);
  for (std::uint32_t i = first; i < first + 4 && i < candidates; ++i) {
    const std::uint32_t value = memory.value[i];
    const std::uint32_t index = memory.index[i];
    const std::uint32_t magnitude = value & kMagnitudeMask;
    const std::uint32_t rank = above + min(equal, ties);
    const bool sent = magnitude > threshold || (magnitude == threshold && equal < ties);
    above += magnitude > threshold;
    equal += magnitude == threshold;
    if (sent) {
      values[rank] = value;
      memory.chosen[rank] = index;
    } else if (make_mask) {
      atomicAnd(memory.above + index / 32, ~(1u << index % 32));
    }
  }
}

/// Applies decoded elements, unless the payload is bad.
template <bool kAdd, bool kClear>
__global__ __launch_bounds__(kThreads) void scatter(const std::byte* payload,
                                                    const std::uint32_t* indices,
                                                    std::uint32_t kept, float* out, float scale,
                                                    const std::uint32_t* fault) {
  const std::uint32_t j = blockIdx.x * kThreads + threadIdx.x;
  if (*fault != 0 || j >= kept) return;
  const auto* values = reinterpret_cast<const float*>(payload + compressors::kHeaderBytes);
  float& x = out[indices[j]];
  x = kClear ? 0.0f : applied<kAdd>(kAdd ? x : 0.0f, scale, values[j]);
}

__global__ __launch_bounds__(kThreads) void fill_zero(float* out, std::size_t count, bool aligned,
                                                      const std::uint32_t* fault) {
  if (*fault != 0) return;
  const std::size_t i = (blockIdx.x * static_cast<std::size_t>(kThreads) + threadIdx.x) * 4;
  store4(out, i, count, aligned, make_float4(0, 0, 0, 0));
}

/// An empty gradient has a header only.
__global__ void write_empty(std::byte* payload, PayloadHeader header) {
  write_header(payload, header);
}

class TopKTwin final : public Twin {
 public:
  explicit TopKTwin(const TwinParameters& parameters)
      : Twin(parameters.spec, parameters.arrays, parameters.momentum), rule_(parameters.keep) {}

  std::size_t payload_bytes(std::size_t count) const override {
    const TopKPayload packed = layout(count);
    return compressors::kHeaderBytes + packed.kept * sizeof(float) + packed.low_bytes +
           packed.high_bytes;
  }
  std::size_t workspace_bytes(std::size_t count) const override {
    return std::max(cut_select_memory(nullptr, count, rule_.kept(count)).bytes,
                    topk_decode_bytes(layout(count)));
  }

 private:
  bool masks_sent() const override { return true; }

  TopKPayload layout(std::size_t count) const {
    return make_topk_payload(count, rule_.kept(count));
  }

  void encode(StreamView stream, const Input& input, const TwinContext&, std::byte* payload,
              std::byte* workspace) const override {
    const TopKPayload packed = layout(input.count);
    if (packed.kept == 0) {
      write_empty<<<1, 1, 0, stream.get()>>>(payload, packed.header);
      return check_launch("topk write_empty");
    }
    SelectMemory memory = cut_select_memory(workspace, input.count, packed.kept);
    if (input.mask_next != nullptr) memory.above = input.mask_next;
    check(cudaMemsetAsync(workspace, 0, memory.cleared_bytes, stream.get()), "cudaMemsetAsync");
    launch_find_candidates(stream, make_feed(input), memory, packed, input.mask, input.hint);
    select(stream, input, memory, packed,
           reinterpret_cast<std::uint32_t*>(payload + compressors::kHeaderBytes));
    launch_pack_indices(stream, packed, memory, input.residual_next, payload);
  }

  void select(StreamView stream, const Input& input, const SelectMemory& memory,
              const TopKPayload& packed, std::uint32_t* values) const {
    const unsigned blocks = std::min(blocks_for(memory.capacity, kThreads * 4), kNarrowBlocks);
    const cudaStream_t s = stream.get();
    narrow<10><<<blocks, kThreads, 0, s>>>(memory);
    narrow<0><<<blocks, kThreads, 0, s>>>(memory);
    rank_parts<<<memory.parts, kPartThreads, 0, s>>>(memory, packed.kept, input.hint);
    choose<<<memory.parts, kPartThreads, 0, s>>>(memory, input.mask_next != nullptr, values);
    check_launch("topk selection");
  }

  void decode(StreamView stream, Apply apply, const Output& output, const TwinContext&,
              std::byte* workspace) const override {
    const TopKPayload packed = layout(output.count);
    const std::uint32_t* indices =
        launch_read_indices(stream, packed, output.payload, workspace, output.fault);
    if (apply == Apply::Set) {
      fill_zero<<<blocks_for(output.count, kThreads * 4), kThreads, 0, stream.get()>>>(
          output.values, output.count, is_vector_aligned(output.values), output.fault);
      check_launch("topk fill_zero");
    }
    const auto kernel = apply == Apply::Set   ? scatter<false, false>
                        : apply == Apply::Add ? scatter<true, false>
                                              : scatter<false, true>;
    kernel<<<blocks_for(packed.kept, kThreads), kThreads, 0, stream.get()>>>(
        output.payload, indices, packed.kept, output.values, output.scale, output.fault);
    check_launch("topk scatter");
  }

  compressors::KeepRule rule_;
};

}  // namespace

std::unique_ptr<Twin> make_topk_twin(const TwinParameters& parameters) {
  return std::make_unique<TopKTwin>(parameters);
}

const void* topk_twin_kernel() {
  return reinterpret_cast<const void*>(write_empty);
}

}  // namespace tersum::gpu
