// Counter-based random draws: what is drawn depends on who asks for which element, never on order,
// threads, slices or vector width.
//
// Generator: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
// Layout, the same on every device:
//
//   stream key   (k0, k1) = first two words of
//                philox(counter = {key low, key high, step low, step high},
//                       key     = {seed low, seed high})
//   group g      philox(counter = {g low, g high, rank, purpose}, key = {k0, k1}) = 4 words
//   16-bit draw  of element e of the gradient: group e / 8, word (e % 8) / 2, its low half if e is
//                even, its high half if e is odd
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "tersum/compressor.hpp"

namespace tersum::compressors {

/// What the draws are for: separates the streams of one gradient in one step.
enum class Purpose : std::uint32_t {
  Rounding = 1,  ///< one draw per element; ranks differ
  IndexSet = 2,  ///< shared by all ranks: the rank in the counter is 0
};

/// One stream of draws.
struct DrawStream {
  std::array<std::uint32_t, 2> key;
  std::uint32_t rank;
  std::uint32_t purpose;
};

/// The stream of a gradient in a step. Does not depend on context.offset.
DrawStream draw_stream(const SliceContext& context, Purpose purpose) noexcept;

/// The four words of one group.
std::array<std::uint32_t, 4> draw(const DrawStream& stream, std::uint64_t group) noexcept;

/// out[i] = the 16-bit draw of element `first` + i. SIMD; any thread.
void draw_16(const DrawStream& stream, std::uint64_t first, std::span<std::uint16_t> out) noexcept;

}  // namespace tersum::compressors
