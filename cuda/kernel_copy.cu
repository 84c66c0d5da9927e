#include <algorithm>
#include <cstdint>

#include "cuda/error.hpp"
#include "cuda/kernel_copy.hpp"
#include "cuda/kernels.hpp"

namespace tersum::gpu {
namespace {

constexpr unsigned kThreads = 512;
constexpr unsigned kMostBlocks = 16;  // keep a PCIe link busy
constexpr std::size_t kEach = 8;      // words that a thread has under way

/// [words] words, and before and after them a few bytes, fewer than a word each.
template <class Word>
struct Run {
  Word* to;
  const Word* from;
  std::size_t words;
  unsigned before, after;
};

template <class Word>
__global__ __launch_bounds__(kThreads) void copy_words(Run<Word> run) {
  if (blockIdx.x == 0 && threadIdx.x < run.before + run.after) {
    auto* const to = reinterpret_cast<std::byte*>(run.to);
    auto* const from = reinterpret_cast<const std::byte*>(run.from);
    std::ptrdiff_t at = static_cast<std::ptrdiff_t>(threadIdx.x) - run.before;
    if (at >= 0) at += static_cast<std::ptrdiff_t>(run.words * sizeof(Word));
    to[at] = from[at];
  }
  const std::size_t stride = std::size_t{gridDim.x} * kThreads;
  std::size_t i = std::size_t{blockIdx.x} * kThreads + threadIdx.x;
  for (; i + (kEach - 1) * stride < run.words; i += kEach * stride) {
    Word words[kEach];
#pragma unroll
    for (std::size_t k = 0; k < kEach; ++k) words[k] = __ldcs(run.from + i + k * stride);
#pragma unroll
    for (std::size_t k = 0; k < kEach; ++k) __stcs(run.to + i + k * stride, words[k]);
  }
  for (; i < run.words; i += stride) __stcs(run.to + i, __ldcs(run.from + i));
}

template <class Word>
void launch_copy(StreamView stream, std::byte* to, const std::byte* from, std::size_t bytes) {
  const std::size_t past = reinterpret_cast<std::uintptr_t>(to) % sizeof(Word);
  const std::size_t before = std::min(bytes, (sizeof(Word) - past) % sizeof(Word));
  const std::size_t words = (bytes - before) / sizeof(Word);
  const Run<Word> run{
      reinterpret_cast<Word*>(to + before), reinterpret_cast<const Word*>(from + before), words,
      static_cast<unsigned>(before), static_cast<unsigned>(bytes - before - words * sizeof(Word))};
  constexpr std::size_t kBlockWords = kThreads * kEach;
  const std::size_t blocks = (words + kBlockWords - 1) / kBlockWords;
  copy_words<<<static_cast<unsigned>(std::clamp<std::size_t>(blocks, 1, kMostBlocks)), kThreads, 0,
               stream.get()>>>(run);
  check_launch("copy_words");
}

}  // namespace

void copy_by_kernel(StreamView stream, void* to, const void* from, std::size_t bytes) {
  if (bytes == 0) return;
  auto* const target = static_cast<std::byte*>(to);
  const auto* const source = static_cast<const std::byte*>(from);
  const std::uintptr_t apart =
      reinterpret_cast<std::uintptr_t>(to) ^ reinterpret_cast<std::uintptr_t>(from);
  if (apart % 16 == 0) return launch_copy<uint4>(stream, target, source, bytes);
  if (apart % 8 == 0) return launch_copy<uint2>(stream, target, source, bytes);
  if (apart % 4 == 0) return launch_copy<std::uint32_t>(stream, target, source, bytes);
  if (apart % 2 == 0) return launch_copy<std::uint16_t>(stream, target, source, bytes);
  launch_copy<std::uint8_t>(stream, target, source, bytes);
}

const void* kernel_copy_kernel() {
  return reinterpret_cast<const void*>(&copy_words<uint4>);
}

}  // namespace tersum::gpu
