// The Elias-Fano code of topk's indices on the device: writing, checking and reading
// (compressors/elias_fano.hpp).
#include <limits>

#include "compressors/wire_ids.hpp"
#include "cuda/block_scan.cuh"
#include "cuda/codec.cuh"
#include "cuda/kernels.hpp"
#include "cuda/topk_twin.hpp"

namespace tersum::gpu {
namespace {

constexpr int kThreads = 256;
constexpr std::uint32_t kReadTile = kThreads;  // words of the high part

__device__ std::byte* low_part(std::byte* payload, const TopKPayload& layout) {
  return payload + compressors::kHeaderBytes + layout.kept * sizeof(float);
}
__device__ const std::byte* low_part(const std::byte* payload, const TopKPayload& layout) {
  return payload + compressors::kHeaderBytes + layout.kept * sizeof(float);
}

/// Word `w` of the low part: pieces of the indices that reach into it.
__device__ std::uint32_t low_word(const TopKPayload& layout, const std::uint32_t* chosen,
                                  std::size_t w) {
  const std::uint32_t bits = layout.low_bits;
  const std::uint32_t mask = (1u << bits) - 1;
  const std::size_t first_bit = w * 32;
  std::uint32_t word = 0;
  for (std::size_t j = first_bit / bits; j < layout.kept && j * bits < first_bit + 32; ++j) {
    const int position = static_cast<int>(static_cast<std::int64_t>(j * bits - first_bit));
    const std::uint32_t part = chosen[j] & mask;
    word |= position < 0 ? part >> -position : part << position;
  }
  return word;
}

__device__ std::size_t high_position(const TopKPayload& layout, const std::uint32_t* chosen,
                                     std::size_t j) {
  return static_cast<std::size_t>(chosen[j] >> layout.low_bits) + j;
}

__global__ __launch_bounds__(kThreads) void pack_indices(TopKPayload layout,
                                                         const std::uint32_t* chosen,
                                                         const SelectControl* control,
                                                         float* residual_next, std::byte* payload) {
  const std::size_t t = blockIdx.x * static_cast<std::size_t>(kThreads) + threadIdx.x;
  if (t == 0) write_header(payload, layout.header);
  std::byte* low = low_part(payload, layout);
  if (t * 4 < layout.low_bytes) {
    store_word(low, t, layout.low_bytes, low_word(layout, chosen, t));
  }
  // The first of the indices whose bits share a byte writes it; other bytes are zero already.
  if (t < layout.kept) {
    const std::size_t byte = high_position(layout, chosen, t) / 8;
    if (t == 0 || high_position(layout, chosen, t - 1) / 8 != byte) {
      unsigned bits = 0;
      for (std::size_t j = t; j < layout.kept; ++j) {
        const std::size_t position = high_position(layout, chosen, j);
        if (position / 8 != byte) break;
        bits |= 1u << position % 8;
      }
      low[layout.low_bytes + byte] = static_cast<std::byte>(bits);
    }
  }
  // More elements were not finite than could be sent: the others must not stay in the residual.
  if (residual_next != nullptr && control->prefix >= kInfinityBits) {
    const std::size_t stride = static_cast<std::size_t>(gridDim.x) * kThreads;
    for (std::size_t i = t; i < layout.count; i += stride) {
      residual_next[i] = finite_or_zero(residual_next[i]);
    }
  }
}

/// 32 bits of the high part, which starts at any byte.
__device__ std::uint32_t high_word(const std::byte* high, const TopKPayload& layout,
                                   std::size_t w) {
  std::uint32_t word = 0;
  for (std::size_t b = 0; b < 4; ++b) {
    if (w * 4 + b < layout.high_bytes) {
      word |= static_cast<std::uint32_t>(high[w * 4 + b]) << (8 * b);
    }
  }
  return word;
}

__device__ bool padding_set(const std::byte* part, std::size_t bytes, std::size_t used_bits) {
  return used_bits % 8 != 0 && static_cast<unsigned>(part[bytes - 1]) >> (used_bits % 8) != 0;
}

__global__ __launch_bounds__(kThreads) void count_high_bits(const std::byte* payload,
                                                            TopKPayload layout, std::uint32_t* sums,
                                                            std::uint32_t* fault) {
  const std::byte* low = low_part(payload, layout);
  const std::byte* high = low + layout.low_bytes;
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    if (!same_header(payload, layout.header)) report_fault(fault, DecodeStatus::kHeader);
    if (padding_set(low, layout.low_bytes,
                    static_cast<std::size_t>(layout.kept) * layout.low_bits) ||
        padding_set(high, layout.high_bytes, layout.high_bits)) {
      report_fault(fault, DecodeStatus::kPadding);
    }
  }
  const std::size_t w = blockIdx.x * static_cast<std::size_t>(kReadTile) + threadIdx.x;
  std::uint32_t total = 0;
  block_scan(__popc(high_word(high, layout, w)), total);
  if (threadIdx.x == 0) sums[blockIdx.x] = total;
}

__global__ __launch_bounds__(1024) void scan_high_bits(TopKPayload layout, std::uint32_t* sums,
                                                       std::uint32_t tiles, std::uint32_t* fault) {
  const std::uint32_t total = scan_array(sums, tiles);
  if (threadIdx.x == 0 && total != layout.kept) report_fault(fault, DecodeStatus::kIndices);
}

/// The low bits of index `j`.
__device__ std::uint32_t low_of(const std::byte* low, const TopKPayload& layout, std::size_t j) {
  if (layout.low_bits == 0) return 0;
  const std::size_t first_bit = j * layout.low_bits;
  const std::uint32_t a = load_word(low, first_bit / 32, layout.low_bytes);
  const std::uint32_t b = load_word(low, first_bit / 32 + 1, layout.low_bytes);
  return __funnelshift_r(a, b, first_bit % 32) & ((1u << layout.low_bits) - 1);
}

/// Lists the set bits of a tile in shared memory, then makes an index of each. Highs never
/// decrease, so indices fail to increase only where a bit follows a set one at once.
__global__ __launch_bounds__(kThreads) void read_indices(const std::byte* payload,
                                                         TopKPayload layout,
                                                         const std::uint32_t* sums,
                                                         std::uint32_t* indices,
                                                         std::uint32_t* fault) {
  __shared__ std::uint16_t places[kReadTile * 32];  // of set bits inside the tile
  if (__syncthreads_or(*fault != 0)) return;        // another block may find a fault at any time
  const std::byte* low = low_part(payload, layout);
  const std::byte* high = low + layout.low_bytes;
  const std::size_t first_word = blockIdx.x * static_cast<std::size_t>(kReadTile);
  const bool follows = first_word > 0 && high_word(high, layout, first_word - 1) >> 31 != 0;
  std::uint32_t word = high_word(high, layout, first_word + threadIdx.x);
  const auto ones = static_cast<std::uint32_t>(__popc(word));
  std::uint32_t total = 0;
  std::uint32_t p = block_scan(ones, total) - ones;
  for (; word != 0; word &= word - 1) {
    places[p++] = static_cast<std::uint16_t>(threadIdx.x * 32 + __ffs(word) - 1);
  }
  __syncthreads();
  const std::size_t first = sums[blockIdx.x];
  for (std::uint32_t c = threadIdx.x; c < total; c += kThreads) {
    const std::size_t j = first + c;
    if (j >= layout.kept) break;  // never with a right sum
    const std::uint32_t low_bits = low_of(low, layout, j);
    const std::uint64_t index = (first_word * 32 + places[c] - j) << layout.low_bits | low_bits;
    const bool adjacent = c > 0 ? places[c - 1] + 1 == places[c] : follows && places[c] == 0;
    if (index >= layout.count || (adjacent && low_of(low, layout, j - 1) >= low_bits)) {
      report_fault(fault, DecodeStatus::kIndices);
    } else {
      indices[j] = static_cast<std::uint32_t>(index);
    }
  }
}

std::uint32_t read_tiles(const TopKPayload& layout) {
  return blocks_for((layout.high_bytes + 3) / 4, kReadTile);
}

}  // namespace

TopKPayload make_topk_payload(std::size_t count, std::size_t kept) {
  if (count > std::numeric_limits<std::uint32_t>::max() - kSelectTile) {
    throw Error(Code::Unsupported,
                "topk on a GPU takes fewer than 2^32 elements; cut the gradient");
  }
  const compressors::EliasFanoLayout layout(count, kept);
  const std::size_t high_bytes = layout.bytes() - layout.low_bytes();
  return {make_header(compressors::wire_id::kTopK, 0, count,
                      compressors::kHeaderBytes + kept * sizeof(float) + layout.bytes()),
          static_cast<std::uint32_t>(count),
          static_cast<std::uint32_t>(kept),
          static_cast<std::uint32_t>(layout.low_bits()),
          layout.low_bytes(),
          layout.high_bits(),
          high_bytes};
}

void launch_pack_indices(StreamView stream, const TopKPayload& layout, const SelectMemory& memory,
                         float* residual_next, std::byte* payload) {
  std::byte* high =
      payload + compressors::kHeaderBytes + layout.kept * sizeof(float) + layout.low_bytes;
  check(cudaMemsetAsync(high, 0, layout.high_bytes, stream.get()), "cudaMemsetAsync");
  const std::size_t work = std::max<std::size_t>(layout.kept, (layout.low_bytes + 3) / 4);
  pack_indices<<<blocks_for(work, kThreads), kThreads, 0, stream.get()>>>(
      layout, memory.chosen, memory.control, residual_next, payload);
  check_launch("pack_indices");
}

std::size_t topk_decode_bytes(const TopKPayload& layout) {
  return (static_cast<std::size_t>(read_tiles(layout)) + layout.kept) * sizeof(std::uint32_t);
}

const std::uint32_t* launch_read_indices(StreamView stream, const TopKPayload& layout,
                                         const std::byte* payload, std::byte* workspace,
                                         std::uint32_t* fault) {
  const std::uint32_t tiles = read_tiles(layout);
  auto* sums = reinterpret_cast<std::uint32_t*>(workspace);
  std::uint32_t* indices = sums + tiles;
  count_high_bits<<<tiles, kThreads, 0, stream.get()>>>(payload, layout, sums, fault);
  check_launch("count_high_bits");
  scan_high_bits<<<1, 1024, 0, stream.get()>>>(layout, sums, tiles, fault);
  check_launch("scan_high_bits");
  read_indices<<<tiles, kThreads, 0, stream.get()>>>(payload, layout, sums, indices, fault);
  check_launch("read_indices");
  return indices;
}

const void* elias_fano_kernel() {
  return reinterpret_cast<const void*>(scan_high_bits);
}

}  // namespace tersum::gpu
