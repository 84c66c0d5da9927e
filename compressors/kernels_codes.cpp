#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compressors/kernels_codes.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include <bit>
#include <cstring>

#include "compressors/kernels.hpp"
#include "compressors/simd-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace tersum::compressors {
namespace HWY_NAMESPACE {

void quantise_nearest(const float* x, float scale, int levels, std::int8_t* codes,
                      std::size_t count) {
  const float top = static_cast<float>(levels);
  for_each_vector(count, [=](auto d, std::size_t i) HWY_ATTR {
    const hn::Rebind<std::int8_t, decltype(d)> d8;
    // The quotient comes first: it is at most 1 whatever the scale, so nothing can overflow.
    const auto ratio = hn::Div(hn::LoadU(d, x + i), hn::Set(d, scale));
    const auto level = hn::NearestInt(hn::Mul(ratio, hn::Set(d, top)));
    hn::StoreU(hn::DemoteTo(d8, level), d8, codes + i);
  });
}

void quantise_stochastic(const float* x, float scale, int levels, const std::uint16_t* draws,
                         std::int8_t* codes, std::size_t count) {
  const float top = static_cast<float>(levels);
  for_each_vector(count, [=](auto d, std::size_t i) HWY_ATTR {
    const hn::RebindToSigned<decltype(d)> di;
    const hn::Rebind<std::int8_t, decltype(d)> d8;
    const hn::Rebind<std::uint16_t, decltype(d)> d16;
    const auto ratio = hn::Div(hn::LoadU(d, x + i), hn::Set(d, scale));
    const auto draw = hn::ConvertTo(d, hn::PromoteTo(di, hn::LoadU(d16, draws + i)));
    const auto threshold = hn::Mul(hn::Add(draw, hn::Set(d, 0.5f)), hn::Set(d, 0x1p-16f));
    const auto level = hn::Floor(hn::Add(hn::Mul(ratio, hn::Set(d, top)), threshold));
    hn::StoreU(hn::DemoteTo(d8, hn::ConvertTo(di, level)), d8, codes + i);
  });
}

void dequantise(const std::int8_t* codes, float scale, int levels, float* out, std::size_t count) {
  const float inverse = 1.0f / static_cast<float>(levels);
  for_each_vector(count, [=](auto d, std::size_t i) HWY_ATTR {
    const hn::RebindToSigned<decltype(d)> di;
    const hn::Rebind<std::int8_t, decltype(d)> d8;
    const auto level = hn::ConvertTo(d, hn::PromoteTo(di, hn::LoadU(d8, codes + i)));
    const auto ratio = hn::Mul(level, hn::Set(d, inverse));
    hn::StoreU(hn::Mul(ratio, hn::Set(d, scale)), d, out + i);
  });
}

// Whole vectors of pairs of 4-bit codes; returns how many codes were packed.
std::size_t pack_nibbles(const std::int8_t* codes, std::uint8_t* out, std::size_t count) {
  const hn::ScalableTag<std::int16_t> d;
  const hn::Repartition<std::int8_t, decltype(d)> d8;
  const hn::Rebind<std::uint8_t, decltype(d)> half;
  const std::size_t pairs = hn::Lanes(d);
  std::size_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  for (; i + 2 * pairs <= count; i += 2 * pairs) {
    const auto both = hn::BitCast(d, hn::LoadU(d8, codes + i));
    const auto low = hn::And(both, hn::Set(d, 0x000f));
    const auto high = hn::And(hn::ShiftRight<4>(both), hn::Set(d, 0x00f0));
    hn::StoreU(hn::DemoteTo(half, hn::Or(low, high)), half, out + i / 2);
  }
#else
  (void)codes, (void)out, (void)count, (void)pairs, (void)d8, (void)half;
#endif
  return i;
}

// The other way.
std::size_t unpack_nibbles(const std::uint8_t* in, std::int8_t* codes, std::size_t count) {
  const hn::ScalableTag<std::int16_t> d;
  const hn::Repartition<std::int8_t, decltype(d)> d8;
  const hn::Rebind<std::uint8_t, decltype(d)> half;
  const std::size_t pairs = hn::Lanes(d);
  std::size_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  const auto sign = hn::Set(d8, 8);
  for (; i + 2 * pairs <= count; i += 2 * pairs) {
    const auto both = hn::PromoteTo(d, hn::LoadU(half, in + i / 2));
    const auto low = hn::And(both, hn::Set(d, 0x000f));
    const auto high = hn::ShiftLeft<4>(hn::And(both, hn::Set(d, 0x00f0)));
    const auto nibbles = hn::BitCast(d8, hn::Or(low, high));
    hn::StoreU(hn::Sub(hn::Xor(nibbles, sign), sign), d8, codes + i);
  }
#else
  (void)in, (void)codes, (void)count, (void)pairs, (void)d8, (void)half;
#endif
  return i;
}

}  // namespace HWY_NAMESPACE
}  // namespace tersum::compressors
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tersum::compressors::kernels {
namespace {

HWY_EXPORT(quantise_nearest);
HWY_EXPORT(quantise_stochastic);
HWY_EXPORT(dequantise);
HWY_EXPORT(pack_nibbles);
HWY_EXPORT(unpack_nibbles);

static_assert(std::endian::native == std::endian::little);

// Eight codes of any width fill whole bytes: packed through one 64-bit word.
template <int kBits>
void pack_words(const std::int8_t* codes, std::byte* out, std::size_t count) {
  constexpr unsigned kMask = (1u << kBits) - 1;
  for (std::size_t i = 0; i < count; i += 8) {
    const std::size_t codes_left = count - i < 8 ? count - i : 8;
    std::uint64_t word = 0;
    for (std::size_t j = 0; j < codes_left; ++j) {
      const std::uint64_t code = static_cast<std::uint8_t>(codes[i + j]) & kMask;
      word |= code << (j * kBits);
    }
    std::memcpy(out + i / 8 * kBits, &word, (codes_left * kBits + 7) / 8);
  }
}

template <int kBits>
void unpack_words(const std::byte* in, std::int8_t* codes, std::size_t count) {
  constexpr int kSign = 1 << (kBits - 1);
  constexpr std::uint64_t kMask = (1u << kBits) - 1;
  for (std::size_t i = 0; i < count; i += 8) {
    const std::size_t codes_left = count - i < 8 ? count - i : 8;
    std::uint64_t word = 0;
    std::memcpy(&word, in + i / 8 * kBits, (codes_left * kBits + 7) / 8);
    for (std::size_t j = 0; j < codes_left; ++j) {
      const int code = static_cast<int>((word >> (j * kBits)) & kMask);
      codes[i + j] = static_cast<std::int8_t>((code ^ kSign) - kSign);
    }
  }
}

}  // namespace

void quantise_nearest(const float* x, float scale, int levels, std::int8_t* codes,
                      std::size_t count) {
  HWY_DYNAMIC_DISPATCH(quantise_nearest)(x, scale, levels, codes, count);
}

void quantise_stochastic(const float* x, float scale, int levels, const std::uint16_t* draws,
                         std::int8_t* codes, std::size_t count) {
  HWY_DYNAMIC_DISPATCH(quantise_stochastic)(x, scale, levels, draws, codes, count);
}

void dequantise(const std::int8_t* codes, float scale, int levels, float* out, std::size_t count) {
  HWY_DYNAMIC_DISPATCH(dequantise)(codes, scale, levels, out, count);
}

void pack_codes(const std::int8_t* codes, int bits, std::byte* out, std::size_t count) {
  switch (bits) {
    case 2:
      return pack_words<2>(codes, out, count);
    case 3:
      return pack_words<3>(codes, out, count);
    case 4: {
      const std::size_t done =
          HWY_DYNAMIC_DISPATCH(pack_nibbles)(codes, reinterpret_cast<std::uint8_t*>(out), count);
      return pack_words<4>(codes + done, out + done / 2, count - done);
    }
    case 5:
      return pack_words<5>(codes, out, count);
    case 6:
      return pack_words<6>(codes, out, count);
    case 7:
      return pack_words<7>(codes, out, count);
    default:
      if (count > 0) std::memcpy(out, codes, count);
  }
}

void unpack_codes(const std::byte* in, int bits, std::int8_t* codes, std::size_t count) {
  switch (bits) {
    case 2:
      return unpack_words<2>(in, codes, count);
    case 3:
      return unpack_words<3>(in, codes, count);
    case 4: {
      const std::size_t done = HWY_DYNAMIC_DISPATCH(unpack_nibbles)(
          reinterpret_cast<const std::uint8_t*>(in), codes, count);
      return unpack_words<4>(in + done / 2, codes + done, count - done);
    }
    case 5:
      return unpack_words<5>(in, codes, count);
    case 6:
      return unpack_words<6>(in, codes, count);
    case 7:
      return unpack_words<7>(in, codes, count);
    default:
      if (count > 0) std::memcpy(codes, in, count);
  }
}

}  // namespace tersum::compressors::kernels
#endif  // HWY_ONCE
