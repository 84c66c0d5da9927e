// Twin of topk (compressors/topk.cpp): the same selection, found in another way.
//
// One pass over memory adds the residual and marks in a bitmap every element that reaches a floor
// guessed from the last step. If at least k elements do, and not too many, the k largest are among
// them (a count proves it, so the guess can cost time but never exactness), and all that follows
// works on these candidates only: their values in order of index (which the pass has left in slots,
// so that nothing is read twice), a radix select of 11 + 10 + 10 bits for the threshold, ranks by
// prefix sums, and the Elias-Fano code. Otherwise, and in the first
// step, a small sample gives a floor for a second pass, which the count has to prove, too. Where
// that fails, or so few elements are sent that a sample says nothing, a histogram of all elements
// gives the floor, or, where one bin holds more than the candidate list (many equal magnitudes),
// the exact threshold. Every kernel is always launched; those that are not needed see it in the
// control block and end.
#include <cmath>

#include "compressors/keep_rule.hpp"
#include "cuda/block_scan.cuh"
#include "cuda/codec.cuh"
#include "cuda/kernels.hpp"
#include "cuda/topk_tiles.cuh"
#include "cuda/topk_twin.hpp"
#include "cuda/twin_methods.hpp"

namespace tersum::gpu {
namespace {

constexpr int kThreads = 256;
constexpr int kRankThreads = 256;
constexpr unsigned kNarrowBlocks = 132 * 2;  // each adds a histogram to the global one

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

/// The floor that next time should give about 1.6 k candidates: this threshold, moved on as it has
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
    factor = fminf(fmaxf(expf(-logf(1.6f) / slope), 0.6f), 0.98f);
  }
  if (last_threshold != 0) {
    const float growth = fminf(fmaxf(top / float_of(last_threshold), 0.7f), 1.5f);
    factor *= growth > 1 ? 1 + 0.8f * (growth - 1) : growth;
  }
  const std::uint32_t floor = bits_of(top * factor);
  return floor == 0 || floor >= kInfinityBits ? 0 : floor;
}

/// Counts per group of tiles. The last block makes them the ranks of each group's first elements,
/// and guesses for the next step.
__global__ __launch_bounds__(kRankThreads) void rank_groups(SelectMemory memory, std::uint32_t kept,
                                                            std::uint32_t* hint) {
  SelectControl* control = memory.control;
  const std::uint32_t threshold = control->prefix;
  const std::uint32_t tile = blockIdx.x * memory.group_tiles;
  const std::uint32_t end = list_position(memory, tile + memory.group_tiles);
  std::uint32_t above = 0;
  std::uint32_t equal = 0;
#pragma unroll 4
  for (std::uint32_t i = list_position(memory, tile) + threadIdx.x; i < end; i += kRankThreads) {
    const std::uint32_t magnitude = memory.value[i] & kMagnitudeMask;
    above += magnitude > threshold;
    equal += magnitude == threshold;
  }
  std::uint32_t total_above = 0;
  std::uint32_t total_equal = 0;
  block_scan(above, total_above);
  block_scan(equal, total_equal);
  if (threadIdx.x == 0) memory.group_above[blockIdx.x] = total_above;
  if (threadIdx.x == 0) memory.group_equal[blockIdx.x] = total_equal;
  if (!is_last_block(control->tickets + kGroupTicket, memory.groups)) return;
  scan_array(memory.group_above, memory.groups);
  scan_array(memory.group_equal, memory.groups);
  if (threadIdx.x == 0 && hint != nullptr) {
    hint[kFloorHint] = next_floor(*control, kept, hint[kThresholdHint]);
    hint[kThresholdHint] = control->prefix;
    if (control->knowledge != Knowledge::Guessed) ++hint[kTopKMissesHint];
  }
}

/// Values and indices of the k largest in order, a group of tiles per block. With feedback the
/// bitmap of candidates becomes the mask of what is sent: the others leave it.
__global__ __launch_bounds__(kTileThreads) void choose(SelectMemory memory, bool make_mask,
                                                       std::uint32_t* values) {
  constexpr std::uint32_t kStaged = 2048;
  __shared__ std::uint32_t staged[kStaged];  // a tile's values, if they are not too many
  const std::uint32_t threshold = memory.control->prefix;
  const std::uint32_t ties = memory.control->ties;
  std::uint32_t group_above = memory.group_above[blockIdx.x];
  std::uint32_t group_equal = memory.group_equal[blockIdx.x];
  const std::uint32_t first_tile = blockIdx.x * memory.group_tiles;
  const std::uint32_t end_tile = min(first_tile + memory.group_tiles, memory.tiles);
  for (std::uint32_t tile = first_tile; tile < end_tile; ++tile) {
    const TileWords candidates = load_tile(memory.above, tile);
    const std::uint32_t ones = candidates.ones();
    const std::uint32_t* value = memory.value + list_position(memory, tile);
    std::uint32_t total = list_position(memory, tile + 1) - list_position(memory, tile);
    if (total <= kStaged) {
      __syncthreads();  // the tile before is done
      for (std::uint32_t c = threadIdx.x; c < total; c += kTileThreads) staged[c] = value[c];
      value = staged;
    }
    value += block_scan(ones, total) - ones;
    std::uint32_t counts = 0;  // above the threshold in the high half, at it in the low half
    for (std::uint32_t c = 0; c < ones; ++c) {
      const std::uint32_t magnitude = value[c] & kMagnitudeMask;
      counts += magnitude > threshold ? 0x10000u : magnitude == threshold ? 1u : 0u;
    }
    const std::uint32_t before = block_scan(counts, total) - counts;
    std::uint32_t above = group_above + (before >> 16);
    std::uint32_t equal = group_equal + (before & 0xffffu);
    TileWords sent = candidates;
    candidates.for_each([&](std::uint32_t place, std::uint32_t part, std::uint32_t bit) {
      const std::uint32_t bits = *value++;
      const std::uint32_t magnitude = bits & kMagnitudeMask;
      const std::uint32_t rank = above + min(equal, ties);
      if (magnitude > threshold || (magnitude == threshold && equal < ties)) {
        values[rank] = bits;
        memory.chosen[rank] = tile * kSelectTile + place;
      } else {
        sent.word[part] &= ~bit;
      }
      above += magnitude > threshold;
      equal += magnitude == threshold;
    });
    if (make_mask) store_tile(memory.above, tile, sent);
    group_above += total >> 16;
    group_equal += total & 0xffffu;
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

  void encode(StreamView stream, const Input& input, const SliceContext&, std::byte* payload,
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
    rank_groups<<<memory.groups, kRankThreads, 0, s>>>(memory, packed.kept, input.hint);
    choose<<<memory.groups, kTileThreads, 0, s>>>(memory, input.mask_next != nullptr, values);
    check_launch("topk selection");
  }

  void decode(StreamView stream, Apply apply, const Output& output, const SliceContext&,
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
