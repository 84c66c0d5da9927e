// The inner loops of the methods, compiled for every instruction set and chosen at run time. All
// targets give the same bits: no fused multiply-add, no reduction whose shape depends on the vector
// width. None of them allocates, throws or keeps state; any thread may call. Buffers do not overlap
// unless said otherwise; none needs more than its element's alignment, byte buffers none at all.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tersum::compressors::kernels {

/// out = a + b. `out` may be `a` or `b`.
void add(const float* a, const float* b, float* out, std::size_t count);

/// accumulator += scale * x, rounded after the product and after the sum.
void add_scaled(float* accumulator, float scale, const float* x, std::size_t count);

/// out = scale * x. `out` may be `x`.
void multiply(const float* x, float scale, float* out, std::size_t count);

/// velocity_next = factor * velocity + gradient; sum_next = residual + velocity_next.
void add_momentum(const float* gradient, const float* velocity, const float* residual, float factor,
                  float* velocity_next, float* sum_next, std::size_t count);

/// x = 0 wherever it is infinite or NaN.
void zero_nonfinite(float* x, std::size_t count);

/// The largest |x| as the bits of a float, NaN counting as larger than infinity; 0 for count 0.
std::uint32_t max_magnitude(const float* x, std::size_t count);

/// Sum of |x| in fp32, in a fixed shape: lane l of 32 adds the elements l, l + 32, ... in order;
/// then lane l adds lane l + 16, then l + 8, 4, 2, 1.
float absolute_sum(const float* x, std::size_t count);

/// codes = round_to_nearest_even(x / scale * levels). |x| <= scale, 0 < scale < infinity.
void quantise_nearest(const float* x, float scale, int levels, std::int8_t* codes,
                      std::size_t count);

/// codes = floor(x / scale * levels + (draw + 0.5) / 65536).
void quantise_stochastic(const float* x, float scale, int levels, const std::uint16_t* draws,
                         std::int8_t* codes, std::size_t count);

/// out = (codes * (1 / levels)) * scale, rounded after each product.
void dequantise(const std::int8_t* codes, float scale, int levels, float* out, std::size_t count);

/// Packs the low `bits` (2..8) of each code, first code in the lowest bits of the first byte; the
/// last byte is filled up with zeros. Writes (count * bits + 7) / 8 bytes.
void pack_codes(const std::int8_t* codes, int bits, std::byte* out, std::size_t count);

/// The other way, with the sign extended.
void unpack_codes(const std::byte* in, int bits, std::int8_t* codes, std::size_t count);

/// One bit per element, 1 where the sign bit is set; first element in the lowest bit. Writes
/// (count + 7) / 8 bytes; unused bits are zero.
void pack_signs(const float* x, std::byte* out, std::size_t count);

/// out = magnitude with the sign of each bit.
void unpack_signs(const std::byte* in, float magnitude, float* out, std::size_t count);

/// Room that select_at_least() needs behind the positions that it reports.
inline constexpr std::size_t kSelectPadding = 64;

/// Positions i, ascending, whose magnitude bits are at least `threshold`; returns how many. `out`
/// has room for count + kSelectPadding.
std::size_t select_at_least(const float* x, std::uint32_t threshold, std::uint32_t* out,
                            std::size_t count);

}  // namespace tersum::compressors::kernels
