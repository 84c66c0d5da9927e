#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compressors/philox.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include <Random123/philox.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "compressors/philox.hpp"

HWY_BEFORE_NAMESPACE();
namespace tersum::compressors {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using D64 = hn::ScalableTag<std::uint64_t>;
using V64 = hn::Vec<D64>;

// One product of a Philox round: 32 x 32 -> 64 bits in every lane.
HWY_INLINE V64 wide_product(V64 a, V64 multiplier) {
#if HWY_TARGET == HWY_SCALAR
  return hn::Set(D64(), hn::GetLane(a) * hn::GetLane(multiplier));
#else
  const hn::Repartition<std::uint32_t, D64> d32;
  return hn::MulEven(hn::BitCast(d32, a), hn::BitCast(d32, multiplier));
#endif
}

// Groups [group, group + groups), four words each. One group per 64-bit lane, its words in the low
// halves; whole vectors only, so it may write up to Lanes - 1 groups more than asked for.
std::size_t draw_groups(const DrawStream& stream, std::uint64_t group, std::size_t groups,
                        std::uint32_t* HWY_RESTRICT out) {
  const D64 d;
  const std::size_t lanes = hn::Lanes(d);
  const V64 low = hn::Set(d, 0xffffffffu);
  const V64 m0 = hn::Set(d, 0xD2511F53u);
  const V64 m1 = hn::Set(d, 0xCD9E8D57u);
  HWY_ALIGN std::uint64_t words[4][HWY_MAX_BYTES / 8];
  std::size_t done = 0;
  for (; done < groups; done += lanes) {
    const V64 counter = hn::Add(hn::Set(d, group + done), hn::Iota(d, 0));
    V64 c0 = hn::And(counter, low);
    V64 c1 = hn::ShiftRight<32>(counter);
    V64 c2 = hn::Set(d, stream.rank);
    V64 c3 = hn::Set(d, stream.purpose);
    std::uint32_t k0 = stream.key[0];
    std::uint32_t k1 = stream.key[1];
    for (int round = 0; round < 10; ++round) {
      const V64 p0 = wide_product(c0, m0);
      const V64 p1 = wide_product(c2, m1);
      c0 = hn::Xor(hn::Xor(hn::ShiftRight<32>(p1), c1), hn::Set(d, k0));
      c2 = hn::Xor(hn::Xor(hn::ShiftRight<32>(p0), c3), hn::Set(d, k1));
      c1 = hn::And(p1, low);
      c3 = hn::And(p0, low);
      k0 += 0x9E3779B9u;
      k1 += 0xBB67AE85u;
    }
    hn::Store(c0, d, words[0]);
    hn::Store(c1, d, words[1]);
    hn::Store(c2, d, words[2]);
    hn::Store(c3, d, words[3]);
    for (std::size_t lane = 0; lane < lanes; ++lane) {
      for (std::size_t word = 0; word < 4; ++word) {
        out[(done + lane) * 4 + word] = static_cast<std::uint32_t>(words[word][lane]);
      }
    }
  }
  return done;
}

}  // namespace HWY_NAMESPACE
}  // namespace tersum::compressors
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tersum::compressors {
namespace {

HWY_EXPORT(draw_groups);

static_assert(std::endian::native == std::endian::little);
constexpr std::size_t kDrawsPerGroup = 8;
constexpr std::size_t kGroupsAtOnce = 64;

std::uint32_t low_word(std::uint64_t value) noexcept {
  return static_cast<std::uint32_t>(value);
}
std::uint32_t high_word(std::uint64_t value) noexcept {
  return static_cast<std::uint32_t>(value >> 32);
}

std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter,
                                    std::array<std::uint32_t, 2> key) noexcept {
  const philox4x32_ctr_t c = {{counter[0], counter[1], counter[2], counter[3]}};
  const philox4x32_key_t k = {{key[0], key[1]}};
  const philox4x32_ctr_t r = philox4x32(c, k);
  return {r.v[0], r.v[1], r.v[2], r.v[3]};
}

}  // namespace

DrawStream draw_stream(const SliceContext& context, Purpose purpose) noexcept {
  const auto words = philox({low_word(context.key), high_word(context.key), low_word(context.step),
                             high_word(context.step)},
                            {low_word(context.seed), high_word(context.seed)});
  return {{words[0], words[1]},
          purpose == Purpose::IndexSet ? 0u : context.rank,
          static_cast<std::uint32_t>(purpose)};
}

std::array<std::uint32_t, 4> draw(const DrawStream& stream, std::uint64_t group) noexcept {
  return philox({low_word(group), high_word(group), stream.rank, stream.purpose}, stream.key);
}

void draw_16(const DrawStream& stream, std::uint64_t first, std::span<std::uint16_t> out) noexcept {
  alignas(64) std::uint32_t words[(kGroupsAtOnce + HWY_MAX_BYTES / 8) * 4];
  std::size_t done = 0;
  while (done < out.size()) {
    const std::uint64_t element = first + done;
    const std::size_t skip = element % kDrawsPerGroup;
    const std::size_t take = std::min(out.size() - done, kGroupsAtOnce * kDrawsPerGroup - skip);
    const std::size_t groups = (skip + take + kDrawsPerGroup - 1) / kDrawsPerGroup;
    HWY_DYNAMIC_DISPATCH(draw_groups)(stream, element / kDrawsPerGroup, groups, words);
    // Little-endian words are already the draws in order.
    std::memcpy(out.data() + done, reinterpret_cast<const std::byte*>(words) + 2 * skip, 2 * take);
    done += take;
  }
}

}  // namespace tersum::compressors
#endif  // HWY_ONCE
