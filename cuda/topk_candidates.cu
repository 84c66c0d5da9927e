// The first half of topk's twin: the list of candidates (topk_twin.cu says how it works).
#include "cuda/block_scan.cuh"
#include "cuda/codec.cuh"
#include "cuda/kernels.hpp"
#include "cuda/topk_twin.hpp"

namespace tersum::gpu {
namespace {

constexpr int kThreads = 256;
constexpr int kWarpWords = 16;                           // bitmap words that a warp fills
constexpr std::uint32_t kStrip = kThreads * kWarpWords;  // elements of a block that fills them
constexpr int kJudgeThreads = 1024;
constexpr int kSampleThreads = 1024;
constexpr std::uint32_t kSample = 32 * kSampleThreads;  // elements
constexpr int kGatherThreads = kSelectTile / 32;        // a bitmap word each
constexpr int kTileSlots = kSelectTile / kSlotElements;
static_assert(kSelectTile % kStrip == 0 && kSelectTile <= 65536);
static_assert(kSlotElements == kWarpWords * 32);
static_assert(TwinState::mask_words_for(1) == kGatherThreads);

/// How many elements of a sample reach a floor that 1.8 k of all do.
__host__ __device__ constexpr std::uint32_t sample_wanted(std::uint32_t count, std::uint32_t kept) {
  return static_cast<std::uint32_t>(std::uint64_t{kSample} * kept * 9 / 5 / count);
}

constexpr std::size_t kFewestSampled = 64 * kSample;  // of fewer elements it saves nothing

/// Not if so few elements are kept that a sample says little, or so many that nearly all are
/// candidates.
constexpr bool is_sample_of_use(std::uint32_t count, std::uint32_t kept) {
  if (count < kFewestSampled) return false;
  const std::uint32_t wanted = sample_wanted(count, kept);
  return wanted >= 48 && wanted <= kSample / 2;
}

/// The first element of a warp's part of a strip.
__device__ std::uint32_t warp_part(std::uint32_t strip) {
  return strip * kStrip + threadIdx.x / 32 * (kWarpWords * 32);
}

/// Whether the pass over all elements has marked the candidates.
__device__ bool has_bitmap(Knowledge knowledge) {
  return knowledge == Knowledge::Guessed || knowledge == Knowledge::Sampled;
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

/// What is sent of a warp's part of a strip; elements that `mask` names have no residual and no
/// velocity. Writes the next velocity.
template <Source kSource>
__device__ void load_strip(const Feed& feed, const std::uint32_t* mask, std::uint32_t start,
                           float (&x)[kWarpWords]) {
  const std::uint32_t lane = threadIdx.x % 32;
  if constexpr (kSource == Source::Gradient) {
#pragma unroll
    for (int j = 0; j < kWarpWords; ++j) x[j] = feed1<kSource, true>(feed, start + j * 32 + lane);
    return;
  }
  const std::uint32_t masks = lane < kWarpWords ? __ldcs(mask + start / 32 + lane) : 0;
  float e[kWarpWords] = {};
  float u[kWarpWords] = {};
#pragma unroll
  for (int j = 0; j < kWarpWords; ++j) {
    const std::uint32_t i = start + j * 32 + lane;
    x[j] = i < feed.count ? __ldcs(feed.gradient + i) : 0.0f;
    e[j] = i < feed.count ? __ldcs(feed.residual + i) : 0.0f;
    if constexpr (kSource == Source::Momentum) {
      u[j] = i < feed.count ? __ldcs(feed.velocity + i) : 0.0f;
    }
  }
#pragma unroll
  for (int j = 0; j < kWarpWords; ++j) {
    const std::uint32_t i = start + j * 32 + lane;
    const bool sent = (__shfl_sync(kAllLanes, masks, j) >> lane & 1) != 0;
    float next = 0;
    x[j] = sum_of<kSource, Nan::Kept>(x[j], sent ? 0.0f : e[j], sent ? 0.0f : u[j], feed.momentum,
                                      next);
    if constexpr (kSource == Source::Momentum) {
      if (i < feed.count) __stcs(feed.velocity_next + i, next);
    }
  }
}

/// Whether so many candidates of kSlotElements are in their slot: not if they do not fit, nor if
/// they are so few that reading them again is cheaper.
__device__ bool is_in_slot(std::uint32_t count) {
  return count >= 4 && count <= kSlotValues;
}

/// Marks the elements of a warp's part of a strip that reach `floor` in the bitmap, and puts them
/// into their slot. Returns how many there are.
__device__ std::uint32_t mark_part(const SelectMemory& memory, std::uint32_t start,
                                   const float (&x)[kWarpWords], std::uint32_t floor) {
  constexpr std::uint32_t kWritten = 16;  // memory is slow where less than 64 bytes are written
  __shared__ std::uint32_t staged[kThreads / 32][kSlotValues];
  std::uint32_t* const mine = staged[threadIdx.x / 32];
  const std::uint32_t lane = threadIdx.x % 32;
  const std::uint32_t lower = (1u << lane) - 1;
  std::uint32_t word = 0;
  std::uint32_t marked = 0;
#pragma unroll
  for (int j = 0; j < kWarpWords; ++j) {
    const bool reaches = magnitude_of(x[j]) >= floor;
    const std::uint32_t marks = __ballot_sync(kAllLanes, reaches);
    if (lane == j) word = marks;
    if (marks == 0) continue;
    const std::uint32_t place = marked + __popc(marks & lower);
    if (reaches && place < kSlotValues) mine[place] = bits_of(x[j]);
    marked += __popc(marks);
  }
  if (lane < kWarpWords) memory.above[start / 32 + lane] = word;
  __syncwarp();
  if (is_in_slot(marked) && lane < (marked + kWritten - 1) / kWritten * kWritten) {
    memory.slots[start / kSlotElements * kSlotValues + lane] = mine[lane];
  }
  __syncwarp();
  return marked;
}

/// One sampled element's magnitude of what is sent; the velocity stays as it is.
template <Source kSource>
__device__ std::uint32_t sampled_magnitude(const Feed& feed, const std::uint32_t* mask,
                                           std::uint32_t i) {
  if constexpr (kSource == Source::Gradient) return magnitude_of(feed.gradient[i]);
  const bool sent = (mask[i / 32] >> i % 32 & 1) != 0;
  const float e = sent ? 0.0f : feed.residual[i];
  float u = 0, next = 0;
  if constexpr (kSource == Source::Momentum) u = sent ? 0.0f : feed.velocity[i];
  return magnitude_of(sum_of<kSource, Nan::Kept>(feed.gradient[i], e, u, feed.momentum, next));
}

/// For one block: a floor that `wanted` elements of the sample reach.
__device__ std::uint32_t floor_of_sample(const SelectMemory& memory, std::uint32_t wanted) {
  constexpr int kEach = kSample / kSampleThreads;
  __shared__ std::uint32_t histogram[kTopBins];
  std::uint32_t* const counts = memory.control->sample;
  std::uint32_t magnitude[kEach];
#pragma unroll
  for (int c = 0; c < kEach; ++c)
    magnitude[c] = __ldcg(memory.sample + c * kSampleThreads + threadIdx.x);
  clear_histogram(histogram, kTopBins);
#pragma unroll
  for (int c = 0; c < kEach; ++c) atomicAdd(histogram + (magnitude[c] >> 20), 1u);
  flush_histogram(histogram, kTopBins, counts);
  __threadfence_block();
  __syncthreads();
  const BinOfKth top = find_bin(counts, kTopBins, wanted);
  clear_histogram(histogram, kLowerBins);
#pragma unroll
  for (int c = 0; c < kEach; ++c) {
    if (magnitude[c] >> 20 == top.bin) {
      atomicAdd(histogram + (magnitude[c] >> 10 & (kLowerBins - 1)), 1u);
    }
  }
  flush_histogram(histogram, kLowerBins, counts + kTopBins);
  __threadfence_block();
  __syncthreads();
  return top.bin << 20 | find_bin(counts + kTopBins, kLowerBins, top.left).bin << 10;
}

/// Whether a floor that `hits` of the sample reach will give enough candidates, and not too many,
/// if the k largest have `expected` elements there. To refuse one costs little, to take one that
/// gives too few a pass or two.
__device__ bool is_plausible(std::uint32_t hits, float expected) {
  const auto reached = static_cast<float>(hits);
  return reached >= fmaxf(expected, 1.2f * expected - 1.8f * sqrtf(expected)) &&
         reached <= 5 * expected;
}

/// Takes a sample, an element per thread. The last block leaves a floor for the pass: the guess
/// from the last step where the sample agrees, or else one that about 1.8 k elements reach.
template <Source kSource>
__global__ __launch_bounds__(kSampleThreads) void take_sample(Feed feed, SelectMemory memory,
                                                              std::uint32_t kept,
                                                              const std::uint32_t* mask,
                                                              const std::uint32_t* hint) {
  SelectControl* control = memory.control;
  const auto count = static_cast<std::uint32_t>(feed.count);
  const std::uint32_t guess = hint == nullptr ? 0 : hint[kFloorHint];
  const std::uint32_t room = count / kSample;
  const std::uint32_t s = blockIdx.x * kSampleThreads + threadIdx.x;
  const std::uint32_t magnitude =
      sampled_magnitude<kSource>(feed, mask, s * room + s * 2654435761u % room);
  memory.sample[s] = magnitude;
  const int reached = __syncthreads_count(magnitude >= guess);
  if (threadIdx.x == 0) atomicAdd(&control->hits, static_cast<std::uint32_t>(reached));
  if (!is_last_block(control->tickets + kSampleTicket, gridDim.x)) return;
  const float expected = static_cast<float>(kSample) * static_cast<float>(kept) / feed.count;
  if (guess != 0 && is_plausible(__ldcg(&control->hits), expected)) {
    if (threadIdx.x == 0) control->floor = guess;
    return;
  }
  const std::uint32_t floor = floor_of_sample(memory, sample_wanted(count, kept));
  if (threadIdx.x != 0) return;
  control->floor = floor;
  control->is_sampled = 1;
}

/// The pass over all elements, one strip per block; a floor of 0 is none.
template <Source kSource>
__global__ __launch_bounds__(kThreads) void absorb(Feed feed, SelectMemory memory,
                                                   const std::uint32_t* mask,
                                                   const std::uint32_t* known_floor) {
  const std::uint32_t floor = known_floor == nullptr ? 0 : *known_floor;
  if (kSource == Source::Gradient && floor == 0) return;
  const auto count = static_cast<std::uint32_t>(feed.count);
  const std::uint32_t lane = threadIdx.x % 32;
  const std::uint32_t start = warp_part(blockIdx.x);
  float x[kWarpWords];
  load_strip<kSource>(feed, mask, start, x);
  if constexpr (kSource != Source::Gradient) {
#pragma unroll
    for (int j = 0; j < kWarpWords; ++j) {
      if (start + j * 32 + lane < count) __stcs(feed.residual_next + start + j * 32 + lane, x[j]);
    }
  }
  if (floor == 0) return;
  const std::uint32_t marked = mark_part(memory, start, x, floor);
  if (lane == 0 && marked != 0) atomicAdd(memory.reached + start / kSelectTile, marked);
}

/// One block: counts the candidates, which proves the floor or not.
__global__ __launch_bounds__(kJudgeThreads) void judge(SelectMemory memory, std::uint32_t kept,
                                                       const std::uint32_t* known_floor) {
  SelectControl* control = memory.control;
  const std::uint32_t floor = known_floor == nullptr ? 0 : *known_floor;
  const std::uint32_t total = floor == 0 ? 0 : scan_array(memory.reached, memory.tiles);
  if (threadIdx.x != 0) return;
  control->floor = floor;
  control->candidates = total;
  if (total < kept || total > memory.capacity) {
    control->knowledge = Knowledge::Nothing;
  } else {
    control->knowledge = control->is_sampled != 0 ? Knowledge::Sampled : Knowledge::Guessed;
  }
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
  if (has_bitmap(control->knowledge)) {
    position = memory.reached[tile];
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

/// Candidates in the order of their indices, and the histogram of their top bits. Values come from
/// slots where there are some, so that memory need not be read here and there.
__global__ __launch_bounds__(kGatherThreads) void gather_candidates(const float* x,
                                                                    SelectMemory memory,
                                                                    std::uint32_t kept) {
  __shared__ std::uint32_t histogram[kTopBins];
  __shared__ std::uint16_t places[kSelectTile];  // of candidates inside the tile
  __shared__ std::uint32_t slot_begin[kTileSlots + 1];
  SelectControl* control = memory.control;
  const Knowledge knowledge = control->knowledge;
  const bool has_slots = has_bitmap(knowledge);
  clear_histogram(histogram, kTopBins);
  for (std::uint32_t tile = blockIdx.x; tile < memory.tiles; tile += gridDim.x) {
    std::uint32_t position = 0;
    const std::uint32_t w = tile * kGatherThreads + threadIdx.x;
    std::uint32_t word = candidates_of(memory, tile, w, position);
    if (knowledge == Knowledge::Exact) memory.above[w] = word;  // becomes the mask
    const std::uint32_t ones = __popc(word);
    std::uint32_t total = 0;
    std::uint32_t p = block_scan(ones, total) - ones;
    if (threadIdx.x % kWarpWords == 0) slot_begin[threadIdx.x / kWarpWords] = p;
    if (threadIdx.x == 0) slot_begin[kTileSlots] = total;
    for (; word != 0; word &= word - 1) {
      places[p++] = static_cast<std::uint16_t>(threadIdx.x * 32 + __ffs(word) - 1);
    }
    __syncthreads();
#pragma unroll 4
    for (std::uint32_t c = threadIdx.x; c < total; c += kGatherThreads) {
      const std::uint32_t index = tile * kSelectTile + places[c];
      const std::uint32_t slot = places[c] / kSlotElements;
      const bool in_slot = has_slots && is_in_slot(slot_begin[slot + 1] - slot_begin[slot]);
      const std::uint32_t value =
          in_slot ? memory.slots[(tile * kTileSlots + slot) * kSlotValues + c - slot_begin[slot]]
                  : bits_of(x[index]);
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
  memory.reached = take(memory.tiles);
  memory.tile_above = take(memory.tiles);
  memory.tile_equal = take(memory.tiles);
  memory.cleared_bytes = used;
  memory.above = take(static_cast<std::size_t>(memory.tiles) * (kSelectTile / 32));
  memory.equal = take(static_cast<std::size_t>(memory.tiles) * (kSelectTile / 32));
  if (count >= kFewestSampled) memory.sample = take(kSample);
  memory.slots = take(static_cast<std::size_t>(memory.tiles) * kTileSlots * kSlotValues);
  memory.index = take(memory.capacity);
  memory.value = take(memory.capacity);
  memory.part_above = take(memory.parts);
  memory.part_equal = take(memory.parts);
  memory.chosen = take(kept);
  memory.bytes = used;
  return memory;
}

void launch_find_candidates(StreamView stream, const Feed& feed, const SelectMemory& memory,
                            const TopKPayload& packed, const std::uint32_t* mask,
                            const std::uint32_t* hint) {
  const float* x = feed.residual_next != nullptr ? feed.residual_next : feed.gradient;
  const unsigned strips = memory.tiles * (kSelectTile / kStrip);  // whole bitmaps are written
  const unsigned blocks = std::min(strips, kPassBlocks);
  const cudaStream_t s = stream.get();
  const bool sampled = is_sample_of_use(packed.count, packed.kept);
  const std::uint32_t* floor = sampled           ? &memory.control->floor
                               : hint != nullptr ? hint + kFloorHint
                                                 : nullptr;
  for_source(feed, [&](auto source) {
    if (sampled) {
      take_sample<source()><<<kSample / kSampleThreads, kSampleThreads, 0, s>>>(
          feed, memory, packed.kept, mask, hint);
    }
    absorb<source()><<<strips, kThreads, 0, s>>>(feed, memory, mask, floor);
  });
  judge<<<1, kJudgeThreads, 0, s>>>(memory, packed.kept, floor);
  refine<Knowledge::Nothing><<<blocks, kThreads, 0, s>>>(x, memory, packed.count, packed.kept);
  refine<Knowledge::TopBits><<<blocks, kThreads, 0, s>>>(x, memory, packed.count, packed.kept);
  refine<Knowledge::HighBits><<<blocks, kThreads, 0, s>>>(x, memory, packed.count, packed.kept);
  mark<<<blocks, kThreads, 0, s>>>(x, memory, packed.count, packed.kept);
  gather_candidates<<<std::min(memory.tiles, kPassBlocks / 2), kGatherThreads, 0, s>>>(x, memory,
                                                                                       packed.kept);
  check_launch("topk candidates");
}

const void* topk_candidates_kernel() {
  return reinterpret_cast<const void*>(judge);
}

}  // namespace tersum::gpu
