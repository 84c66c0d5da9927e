#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compressors/kernels_bits.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include <bit>
#include <cmath>
#include <cstring>

#include "compressors/kernels.hpp"
#include "compressors/simd-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace tersum::compressors {
namespace HWY_NAMESPACE {

void pack_signs(const float* x, std::uint8_t* out, std::size_t count) {
  const hn::CappedTag<float, 16> d;
  const hn::RebindToSigned<decltype(d)> di;
  const std::size_t lanes = hn::Lanes(d);
  std::size_t i = 0;
  for (; i + 32 <= count; i += 32) {
    std::uint32_t word = 0;
    for (std::size_t j = 0; j < 32; j += lanes) {
      const auto bits = hn::BitCast(di, hn::LoadU(d, x + i + j));
      std::uint8_t mask[8] = {};
      hn::StoreMaskBits(di, hn::Lt(bits, hn::Zero(di)), mask);
      std::uint32_t part;  // 16 bits would do, but g++ 12 can lose their zero extension at -O1
      std::memcpy(&part, mask, sizeof part);
      word |= part << j;
    }
    std::memcpy(out + i / 8, &word, sizeof word);
  }
  for (; i < count; i += 8) {
    unsigned byte = 0;
    for (std::size_t j = 0; j < 8 && i + j < count; ++j) {
      byte |= static_cast<unsigned>(std::signbit(x[i + j])) << j;
    }
    out[i / 8] = static_cast<std::uint8_t>(byte);
  }
}

void unpack_signs(const std::uint8_t* in, float magnitude, float* out, std::size_t count) {
  const hn::CappedTag<float, 16> d;
  const hn::RebindToUnsigned<decltype(d)> du;
  const std::size_t lanes = hn::Lanes(d);
  const auto plus = hn::Set(d, magnitude);
  const auto minus = hn::Neg(plus);
  const auto lane_bit = hn::BitCast(du, [&]() HWY_ATTR {
    HWY_ALIGN std::uint32_t bit[HWY_MAX_BYTES / 4] = {};
    for (std::size_t j = 0; j < lanes; ++j) bit[j] = 1u << j;
    return hn::Load(du, bit);
  }());
  std::size_t i = 0;
  for (; i + 32 <= count; i += 32) {
    std::uint32_t word;
    std::memcpy(&word, in + i / 8, sizeof word);
    for (std::size_t j = 0; j < 32; j += lanes) {
      const auto negative = hn::TestBit(hn::Set(du, word >> j), lane_bit);
      hn::StoreU(hn::IfThenElse(hn::RebindMask(d, negative), minus, plus), d, out + i + j);
    }
  }
  for (; i < count; ++i) {
    out[i] = (in[i / 8] >> (i % 8) & 1) != 0 ? -magnitude : magnitude;
  }
}

std::size_t select_at_least(const float* x, std::uint32_t threshold, std::uint32_t* out,
                            std::size_t count) {
  const hn::CappedTag<float, 16> d;
  const hn::RebindToSigned<decltype(d)> di;
  const hn::RebindToUnsigned<decltype(d)> du;
  const std::size_t lanes = hn::Lanes(d);
  const auto magnitude_bits = hn::Set(di, 0x7fffffff);
  // "Greater than threshold - 1" needs signed numbers only; magnitudes have 31 bits.
  const auto below = hn::Set(di, static_cast<std::int32_t>(threshold) - 1);
  std::size_t found = 0;
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const auto magnitude = hn::And(hn::BitCast(di, hn::LoadU(d, x + i)), magnitude_bits);
    const auto selected = hn::Gt(magnitude, below);
    if (hn::AllFalse(di, selected)) continue;
    const auto position = hn::Iota(du, static_cast<std::uint32_t>(i));
    found += hn::CompressStore(position, hn::RebindMask(du, selected), du, out + found);
  }
  for (; i < count; ++i) {
    if ((std::bit_cast<std::uint32_t>(x[i]) & 0x7fffffffu) >= threshold) {
      out[found++] = static_cast<std::uint32_t>(i);
    }
  }
  return found;
}

}  // namespace HWY_NAMESPACE
}  // namespace tersum::compressors
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tersum::compressors::kernels {
namespace {
HWY_EXPORT(pack_signs);
HWY_EXPORT(unpack_signs);
HWY_EXPORT(select_at_least);
static_assert(std::endian::native == std::endian::little);
}  // namespace

void pack_signs(const float* x, std::byte* out, std::size_t count) {
  HWY_DYNAMIC_DISPATCH(pack_signs)(x, reinterpret_cast<std::uint8_t*>(out), count);
}

void unpack_signs(const std::byte* in, float magnitude, float* out, std::size_t count) {
  HWY_DYNAMIC_DISPATCH(unpack_signs)
  (reinterpret_cast<const std::uint8_t*>(in), magnitude, out, count);
}

std::size_t select_at_least(const float* x, std::uint32_t threshold, std::uint32_t* out,
                            std::size_t count) {
  return HWY_DYNAMIC_DISPATCH(select_at_least)(x, threshold, out, count);
}

}  // namespace tersum::compressors::kernels
#endif  // HWY_ONCE
