// Twin of topk (compressors/topk.cpp): the same selection, found in another way.
//
// One pass over memory adds the residual and marks in a bitmap every element that reaches a floor
// guessed from the last step. If at least k elements do, and not too many, the k largest are among
// them (a count proves it, so the guess can cost time but never exactness), and all that follows
// works on these candidates only: their list in order of index, a radix select of 11 + 10 + 10 bits
// for the threshold, ranks by prefix sums, and the Elias-Fano code. Otherwise, and in the first
// step, a histogram of all elements gives the floor, or, where one bin holds more than the
// candidate list (many equal magnitudes), the exact threshold. Every kernel is always launched;
// those that are not needed see it in the control block and end.
#include <cmath>

#include "compressors/keep_rule.hpp"
#include "cuda/block_scan.cuh"
#include "cuda/codec.cuh"
#include "cuda/topk_twin.hpp"
#include "cuda/twin_methods.hpp"

namespace tersum::gpu {
namespace {

constexpr int kThreads = 256;
constexpr int kWarpWords = 16;                           // bitmap words that a warp fills
constexpr std::uint32_t kStrip = kThreads * kWarpWords;  // elements of a block that fills them
constexpr int kGatherThreads = kSelectTile / 32;         // a bitmap word each
constexpr int kPartThreads = kCandidateTile / 4;
constexpr unsigned kPassBlocks = 132 * 8;  // of kernels that loop over tiles
static_assert(kSelectTile % kStrip == 0 && kSelectTile <= 65536);

// Tickets of SelectControl: those of refine() are numbered by what was known before.
constexpr int kCandidateTicket = 0;
constexpr int kMarkTicket = 2;
constexpr int kPartTicket = 7;
constexpr int kNarrowTickets = 5;  // and the one behind it

/// The first element of a warp's part of a strip.
__device__ std::uint32_t warp_part(std::uint32_t strip) {
  return strip * kStrip + threadIdx.x / 32 * (kWarpWords * 32);
}

/// Adds a block's histogram to the global one and clears it.
__device__ void flush_histogram(std::uint32_t* local, std::uint32_t bins, std::uint32_t* global) {
  __syncthreads();
  for (std::uint32_t b = threadIdx.x; b < bins; b += blockDim.x) {
    if (local[b] != 0) atomicAdd(global + b, local[b]);
  }
}

__device__ void clear_histogram(std::uint32_t* local, std::uint32_t bins) {
  for (std::uint32_t b = threadIdx.x; b < bins; b += blockDim.x) local[b] = 0;
  __syncthreads();
}

/// What the histogram of the top bits says: few enough candidates, or more bits are needed.
__device__ void decide_after_top_bits(SelectControl* control, std::uint32_t kept,
                                      std::uint32_t capacity) {
  const BinOfKth found = find_bin(control->all, kTopBins, kept);
  if (threadIdx.x != 0) return;
  control->floor = found.bin << 20;
  control->left = found.left;
  control->knowledge = found.at_least <= capacity ? Knowledge::Bin : Knowledge::TopBits;
}

/// The pass over all elements, one strip per block. hint[0] is the floor guessed from the last
/// step, 0 for none; hint[1] was its threshold.
template <Source kSource>
__global__ __launch_bounds__(kThreads) void absorb(Feed feed, SelectMemory memory,
                                                   const std::uint32_t* hint) {
  const std::uint32_t floor = hint == nullptr ? 0 : *hint;
  const auto count = static_cast<std::uint32_t>(feed.count);
  const std::uint32_t lane = threadIdx.x % 32;
  const std::uint32_t start = warp_part(blockIdx.x);
  float x[kWarpWords];
#pragma unroll
  for (int j = 0; j < kWarpWords; ++j) x[j] = feed1<kSource, true>(feed, start + j * 32 + lane);
  if constexpr (kSource != Source::Gradient) {
#pragma unroll
    for (int j = 0; j < kWarpWords; ++j) {
      if (start + j * 32 + lane < count) __stcs(feed.residual_next + start + j * 32 + lane, x[j]);
    }
  }
  if (floor == 0) return;
  std::uint32_t word = 0;
#pragma unroll
  for (int j = 0; j < kWarpWords; ++j) {
    const std::uint32_t marks = __ballot_sync(kAllLanes, magnitude_of(x[j]) >= floor);
    if (lane == j) word = marks;
  }
  if (lane < kWarpWords) memory.above[start / 32 + lane] = word;
  const std::uint32_t marked = __reduce_add_sync(kAllLanes, __popc(word));
  if (lane == 0 && marked != 0) atomicAdd(memory.guessed + start / kSelectTile, marked);
}

/// One block: counts the candidates of the guess.
__global__ __launch_bounds__(1024) void judge_guess(SelectMemory memory, std::uint32_t kept,
                                                    const std::uint32_t* hint) {
  SelectControl* control = memory.control;
  const std::uint32_t floor = hint == nullptr ? 0 : *hint;
  const std::uint32_t total = floor == 0 ? 0 : scan_array(memory.guessed, memory.tiles);
  if (threadIdx.x != 0) return;
  const bool good = total >= kept && total <= memory.capacity;
  control->knowledge = good ? Knowledge::Guessed : Knowledge::Nothing;
  control->floor = floor;
  control->candidates = total;
}

/// Histogram of the next bits of those elements of `x` that have the known ones.
template <Knowledge kKnown>
__global__ __launch_bounds__(kThreads) void refine(const float* x, SelectMemory memory,
                                                   std::uint32_t count, std::uint32_t kept) {
  constexpr bool kTop = kKnown == Knowledge::Nothing;
  constexpr std::uint32_t kBins = kTop ? kTopBins : kLowerBins;
  constexpr int kShift = kTop ? 20 : kKnown == Knowledge::TopBits ? 10 : 0;
  __shared__ std::uint32_t histogram[kBins];
  SelectControl* control = memory.control;
  if (control->knowledge != kKnown) return;
  const std::uint32_t known = kTop ? 0 : control->floor >> (kShift + 10);
  const std::uint32_t left = control->left;
  std::uint32_t* const all = control->all + (kTop           ? 0
                                             : kShift == 10 ? kTopBins
                                                            : kTopBins + kLowerBins);
  clear_histogram(histogram, kBins);
  const std::uint32_t stride = gridDim.x * kThreads;
  for (std::size_t i = blockIdx.x * kThreads + threadIdx.x; i < count; i += stride) {
    const std::uint32_t magnitude = magnitude_of(x[i]);
    if (kTop || magnitude >> (kShift + 10) == known) {
      atomicAdd(histogram + (magnitude >> kShift & (kBins - 1)), 1u);
    }
  }
  flush_histogram(histogram, kBins, all);
  if (!is_last_block(control->tickets + static_cast<int>(kKnown), gridDim.x)) return;
  if constexpr (kTop) return decide_after_top_bits(control, kept, memory.capacity);
  const BinOfKth found = find_bin(all, kBins, left);
  if (threadIdx.x != 0) return;
  control->floor |= found.bin << kShift;
  control->left = found.left;
  control->knowledge = kKnown == Knowledge::TopBits ? Knowledge::HighBits : Knowledge::Exact;
}

/// Bitmaps for a floor that a histogram has given; of ties apart where it is the exact threshold.
/// The last block finds where each tile's candidates go.
__global__ __launch_bounds__(kThreads) void mark(const float* x, SelectMemory memory,
                                                 std::uint32_t count, std::uint32_t kept) {
  SelectControl* control = memory.control;
  const bool exact = control->knowledge == Knowledge::Exact;
  if (!exact && control->knowledge != Knowledge::Bin) return;
  const std::uint32_t floor = control->floor;
  const std::uint32_t lane = threadIdx.x % 32;
  for (std::uint32_t strip = blockIdx.x; strip < memory.tiles * (kSelectTile / kStrip);
       strip += gridDim.x) {
    const std::uint32_t start = warp_part(strip);
    std::uint32_t above = 0;
    std::uint32_t equal = 0;
#pragma unroll
    for (int j = 0; j < kWarpWords; ++j) {
      const std::uint32_t i = start + j * 32 + lane;
      const std::uint32_t magnitude = i < count ? magnitude_of(x[i]) : 0;
      const bool tie = exact && magnitude == floor;
      const std::uint32_t a = __ballot_sync(kAllLanes, i < count && magnitude >= floor && !tie);
      const std::uint32_t e = __ballot_sync(kAllLanes, i < count && tie);
      if (lane == j) above = a, equal = e;
    }
    if (lane < kWarpWords) memory.above[start / 32 + lane] = above;
    if (lane < kWarpWords) memory.equal[start / 32 + lane] = equal;
    const std::uint32_t tile = start / kSelectTile;
    above = __reduce_add_sync(kAllLanes, __popc(above));
    equal = __reduce_add_sync(kAllLanes, __popc(equal));
    if (lane == 0 && above != 0) atomicAdd(memory.tile_above + tile, above);
    if (lane == 0 && equal != 0) atomicAdd(memory.tile_equal + tile, equal);
  }
  if (!is_last_block(control->tickets + kMarkTicket, gridDim.x)) return;
  const std::uint32_t total = scan_array(memory.tile_above, memory.tiles);
  if (exact) scan_array(memory.tile_equal, memory.tiles);
  if (threadIdx.x == 0) control->candidates = exact ? kept : total;
}

/// The lowest `keep` set bits of `word`.
__device__ std::uint32_t lowest_bits(std::uint32_t word, std::uint32_t keep) {
  std::uint32_t result = 0;
  for (; keep > 0; --keep) {
    result |= word & -word;
    word &= word - 1;
  }
  return result;
}

/// The candidates among the 32 elements of word `w`, and where those of the tile go in the list.
__device__ std::uint32_t candidates_of(const SelectMemory& memory, std::uint32_t tile,
                                       std::uint32_t w, std::uint32_t& position) {
  const SelectControl* control = memory.control;
  if (control->knowledge == Knowledge::Guessed) {
    position = memory.guessed[tile];
    return memory.above[w];
  }
  position = memory.tile_above[tile];
  const std::uint32_t word = memory.above[w];
  if (control->knowledge != Knowledge::Exact) return word;
  const std::uint32_t ties = control->left;
  const std::uint32_t equal = memory.equal[w];
  const std::uint32_t ones = __popc(equal);
  const std::uint32_t first = memory.tile_equal[tile];
  std::uint32_t total = 0;
  const std::uint32_t before = first + block_scan(ones, total) - ones;
  position += min(first, ties);
  return word | lowest_bits(equal, before < ties ? min(ties - before, ones) : 0);
}

/// Candidates in the order of their indices, and the histogram of their top bits.
__global__ __launch_bounds__(kGatherThreads) void gather_candidates(const float* x,
                                                                    SelectMemory memory,
                                                                    std::uint32_t kept) {
  __shared__ std::uint32_t histogram[kTopBins];
  __shared__ std::uint16_t places[kSelectTile];  // of candidates inside the tile
  SelectControl* control = memory.control;
  clear_histogram(histogram, kTopBins);
  for (std::uint32_t tile = blockIdx.x; tile < memory.tiles; tile += gridDim.x) {
    std::uint32_t position = 0;
    std::uint32_t word = candidates_of(memory, tile, tile * kGatherThreads + threadIdx.x, position);
    const std::uint32_t ones = __popc(word);
    std::uint32_t total = 0;
    std::uint32_t p = block_scan(ones, total) - ones;
    for (; word != 0; word &= word - 1) {
      places[p++] = static_cast<std::uint16_t>(threadIdx.x * 32 + __ffs(word) - 1);
    }
    __syncthreads();
#pragma unroll 4
    for (std::uint32_t c = threadIdx.x; c < total; c += kGatherThreads) {
      const std::uint32_t index = tile * kSelectTile + places[c];
      const std::uint32_t value = bits_of(x[index]);
      memory.index[position + c] = index;
      memory.value[position + c] = value;
      atomicAdd(histogram + ((value & kMagnitudeMask) >> 20), 1u);
    }
    __syncthreads();
  }
  flush_histogram(histogram, kTopBins, control->candidate);
  if (!is_last_block(control->tickets + kCandidateTicket, gridDim.x)) return;
  const BinOfKth found = find_bin(control->candidate, kTopBins, kept);
  if (threadIdx.x != 0) return;
  control->prefix = found.bin << 20;
  control->ties = found.left;
}

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
  const std::uint32_t stride = gridDim.x * kThreads;
  for (std::uint32_t i = blockIdx.x * kThreads + threadIdx.x; i < candidates; i += stride) {
    const std::uint32_t magnitude = memory.value[i] & kMagnitudeMask;
    if (magnitude >> (kShift + 10) == known) {
      atomicAdd(histogram + (magnitude >> kShift & (kLowerBins - 1)), 1u);
    }
  }
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
  std::uint32_t counts = 0;
  for (std::uint32_t c = 0; c < 4 && first + c < candidates; ++c) {
    const std::uint32_t magnitude = memory.value[first + c] & kMagnitudeMask;
    counts += magnitude > threshold ? 0x10000u : magnitude == threshold ? 1u : 0u;
  }
  return counts;
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
    hint[0] = next_floor(*control, kept, hint[1]);
    hint[1] = control->prefix;
  }
}

/// Values and indices of the k largest in order; they leave residual and velocity.
__global__ __launch_bounds__(kPartThreads) void choose(SelectMemory memory, float* residual_next,
                                                       float* velocity_next,
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
    const std::uint32_t magnitude = value & kMagnitudeMask;
    const std::uint32_t rank = above + min(equal, ties);
    const bool sent = magnitude > threshold || (magnitude == threshold && equal < ties);
    above += magnitude > threshold;
    equal += magnitude == threshold;
    if (!sent) continue;
    const std::uint32_t index = memory.index[i];
    values[rank] = value;
    memory.chosen[rank] = index;
    if (residual_next != nullptr) residual_next[index] = 0.0f;
    if (velocity_next != nullptr) velocity_next[index] = 0.0f;
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
    const SelectMemory memory = cut_select_memory(workspace, input.count, packed.kept);
    check(cudaMemsetAsync(workspace, 0, memory.cleared_bytes, stream.get()), "cudaMemsetAsync");
    const float* x = input.residual_next != nullptr ? input.residual_next : input.gradient;
    find_candidates(stream, input, memory, packed, x);
    select(stream, input, memory, packed,
           reinterpret_cast<std::uint32_t*>(payload + compressors::kHeaderBytes));
    launch_pack_indices(stream, packed, memory, input.residual_next, payload);
  }

  void find_candidates(StreamView stream, const Input& input, const SelectMemory& memory,
                       const TopKPayload& packed, const float* x) const {
    const unsigned strips = memory.tiles * (kSelectTile / kStrip);  // whole bitmaps are written
    const unsigned blocks = std::min(strips, kPassBlocks);
    const cudaStream_t s = stream.get();
    for_source(input, [&](auto source) {
      absorb<source()><<<strips, kThreads, 0, s>>>(make_feed(input), memory, input.hint);
    });
    judge_guess<<<1, 1024, 0, s>>>(memory, packed.kept, input.hint);
    refine<Knowledge::Nothing><<<blocks, kThreads, 0, s>>>(x, memory, packed.count, packed.kept);
    refine<Knowledge::TopBits><<<blocks, kThreads, 0, s>>>(x, memory, packed.count, packed.kept);
    refine<Knowledge::HighBits><<<blocks, kThreads, 0, s>>>(x, memory, packed.count, packed.kept);
    mark<<<blocks, kThreads, 0, s>>>(x, memory, packed.count, packed.kept);
    gather_candidates<<<std::min(memory.tiles, kPassBlocks / 2), kGatherThreads, 0, s>>>(
        x, memory, packed.kept);
    check_launch("topk candidates");
  }

  void select(StreamView stream, const Input& input, const SelectMemory& memory,
              const TopKPayload& packed, std::uint32_t* values) const {
    const unsigned blocks = std::min(blocks_for(memory.capacity, kThreads * 4), kPassBlocks);
    const cudaStream_t s = stream.get();
    narrow<10><<<blocks, kThreads, 0, s>>>(memory);
    narrow<0><<<blocks, kThreads, 0, s>>>(memory);
    rank_parts<<<memory.parts, kPartThreads, 0, s>>>(memory, packed.kept, input.hint);
    choose<<<memory.parts, kPartThreads, 0, s>>>(memory, input.residual_next, input.velocity_next,
                                                 values);
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

SelectMemory cut_select_memory(std::byte* workspace, std::size_t count, std::size_t kept) {
  SelectMemory memory{};
  std::size_t used = 0;
  const auto take = [&](std::size_t words) {
    auto* part = reinterpret_cast<std::uint32_t*>(workspace + used);
    used += (words * sizeof(std::uint32_t) + 255) / 256 * 256;
    return part;
  };
  memory.tiles = blocks_for(count, kSelectTile);
  memory.capacity = static_cast<std::uint32_t>(std::min(count, 6 * kept + 4096));
  memory.parts = blocks_for(memory.capacity, kCandidateTile);
  memory.control = reinterpret_cast<SelectControl*>(take(sizeof(SelectControl) / 4));
  memory.guessed = take(memory.tiles);
  memory.tile_above = take(memory.tiles);
  memory.tile_equal = take(memory.tiles);
  memory.cleared_bytes = used;
  memory.above = take(static_cast<std::size_t>(memory.tiles) * (kSelectTile / 32));
  memory.equal = take(static_cast<std::size_t>(memory.tiles) * (kSelectTile / 32));
  memory.index = take(memory.capacity);
  memory.value = take(memory.capacity);
  memory.part_above = take(memory.parts);
  memory.part_equal = take(memory.parts);
  memory.chosen = take(kept);
  memory.bytes = used;
  return memory;
}

std::unique_ptr<Twin> make_topk_twin(const TwinParameters& parameters) {
  return std::make_unique<TopKTwin>(parameters);
}

}  // namespace tersum::gpu
