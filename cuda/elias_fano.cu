// The Elias-Fano code of topk's indices on the device: writing, checking and reading
// (compressors/elias_fano.hpp).
#include <limits>

#include "compressors/wire_ids.hpp"
#include "cuda/block_scan.cuh"
#include "cuda/codec.cuh"
#include "cuda/topk_twin.hpp"

namespace tersum::gpu {
namespace {

constexpr int kThreads = 256;
constexpr std::uint32_t kWordsEach = 4;
constexpr std::uint32_t kReadTile = kThreads * kWordsEach;  // words of the high part

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
  const std::size_t first = blockIdx.x * static_cast<std::size_t>(kReadTile) + threadIdx.x;
  std::uint32_t ones = 0;
#pragma unroll
  for (std::uint32_t c = 0; c < kWordsEach; ++c) {
    ones += __popc(high_word(high, layout, first + c * kThreads));
  }
  std::uint32_t total = 0;
  block_scan(ones, total);
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

/// Highs never decrease, so indices fail to increase only where a bit follows a set one at once.
__global__ __launch_bounds__(kThreads) void read_indices(const std::byte* payload,
                                                         TopKPayload layout,
                                                         const std::uint32_t* sums,
                                                         std::uint32_t* indices,
                                                         std::uint32_t* fault) {
  if (__syncthreads_or(*fault != 0)) return;  // another block may find a fault at any time
  const std::byte* low = low_part(payload, layout);
  const std::byte* high = low + layout.low_bytes;
  std::uint32_t done = sums[blockIdx.x];
  for (std::uint32_t c = 0; c < kWordsEach; ++c) {
    const std::size_t w =
        blockIdx.x * static_cast<std::size_t>(kReadTile) + c * kThreads + threadIdx.x;
    std::uint32_t word = high_word(high, layout, w);
    bool follows = w > 0 && high_word(high, layout, w - 1) >> 31 != 0;
    std::uint32_t total = 0;
    const auto ones = static_cast<std::uint32_t>(__popc(word));
    std::uint32_t j = done + block_scan(ones, total) - ones;
    done += total;
    std::uint32_t last = 0xffffffffu;
    while (word != 0) {
      const std::uint32_t bit = __ffs(word) - 1;
      word &= word - 1;
      if (j >= layout.kept) break;
      const std::uint32_t low_bits = low_of(low, layout, j);
      const std::uint64_t index = (w * 32 + bit - j) << layout.low_bits | low_bits;
      const bool adjacent = bit == 0 ? follows : last + 1 == bit;
      if (index >= layout.count || (adjacent && low_of(low, layout, j - 1) >= low_bits)) {
        report_fault(fault, DecodeStatus::kIndices);
        break;
      }
      indices[j] = static_cast<std::uint32_t>(index);
      last = bit;
      ++j;
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

}  // namespace tersum::gpu
