#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compressors/kernels_arithmetic.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include <bit>
#include <cmath>

#include "compressors/kernels.hpp"
#include "compressors/simd-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace tersum::compressors {
namespace HWY_NAMESPACE {

void add(const float* a, const float* b, float* out, std::size_t count) {
  for_each_vector(count, [=](auto d, std::size_t i) HWY_ATTR {
    hn::StoreU(hn::Add(hn::LoadU(d, a + i), hn::LoadU(d, b + i)), d, out + i);
  });
}

void add_scaled(float* accumulator, float scale, const float* x, std::size_t count) {
  for_each_vector(count, [=](auto d, std::size_t i) HWY_ATTR {
    const auto product = hn::Mul(hn::Set(d, scale), hn::LoadU(d, x + i));
    hn::StoreU(hn::Add(hn::LoadU(d, accumulator + i), product), d, accumulator + i);
  });
}

void multiply(const float* x, float scale, float* out, std::size_t count) {
  for_each_vector(count, [=](auto d, std::size_t i) HWY_ATTR {
    hn::StoreU(hn::Mul(hn::Set(d, scale), hn::LoadU(d, x + i)), d, out + i);
  });
}

void add_momentum(const float* gradient, const float* velocity, const float* residual, float factor,
                  float* velocity_next, float* sum_next, std::size_t count) {
  for_each_vector(count, [=](auto d, std::size_t i) HWY_ATTR {
    const auto decayed = hn::Mul(hn::Set(d, factor), hn::LoadU(d, velocity + i));
    const auto next = hn::Add(decayed, hn::LoadU(d, gradient + i));
    hn::StoreU(next, d, velocity_next + i);
    hn::StoreU(hn::Add(hn::LoadU(d, residual + i), next), d, sum_next + i);
  });
}

void zero_nonfinite(float* x, std::size_t count) {
  for_each_vector(count, [=](auto d, std::size_t i) HWY_ATTR {
    const hn::RebindToSigned<decltype(d)> di;
    const auto value = hn::LoadU(d, x + i);
    const auto magnitude = hn::And(hn::BitCast(di, value), hn::Set(di, 0x7fffffff));
    const auto finite = hn::RebindMask(d, hn::Lt(magnitude, hn::Set(di, 0x7f800000)));
    hn::StoreU(hn::IfThenElseZero(finite, value), d, x + i);
  });
}

std::uint32_t max_magnitude(const float* x, std::size_t count) {
  // Magnitude bits are below 2^31 and ordered as the floats are, so the signed maximum will do.
  const hn::ScalableTag<float> d;
  const hn::RebindToSigned<decltype(d)> di;
  const std::size_t lanes = hn::Lanes(d);
  const auto mask = hn::Set(di, 0x7fffffff);
  auto largest = hn::Zero(di);
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    largest = hn::Max(largest, hn::And(hn::BitCast(di, hn::LoadU(d, x + i)), mask));
  }
  std::uint32_t result = static_cast<std::uint32_t>(hn::GetLane(hn::MaxOfLanes(di, largest)));
  for (; i < count; ++i) {
    const std::uint32_t magnitude = std::bit_cast<std::uint32_t>(x[i]) & 0x7fffffffu;
    result = magnitude > result ? magnitude : result;
  }
  return result;
}

float absolute_sum(const float* x, std::size_t count) {
  const hn::CappedTag<float, 16> d;
  const std::size_t lanes = hn::Lanes(d);
  const std::size_t vectors = 32 / lanes;
  HWY_ALIGN float sums[32] = {};
  std::size_t i = 0;
  // Two vectors of the 32 lanes at a time stay in registers; each lane adds in element order.
  for (std::size_t v = 0; v < vectors; v += 2) {
    const std::size_t first = v * lanes;
    auto low = hn::Zero(d);
    auto high = hn::Zero(d);
    for (i = 0; i + 32 <= count; i += 32) {
      low = hn::Add(low, hn::Abs(hn::LoadU(d, x + i + first)));
      high = hn::Add(high, hn::Abs(hn::LoadU(d, x + i + first + lanes)));
    }
    hn::Store(low, d, sums + first);
    hn::StoreU(high, d, sums + first + lanes);
  }
  for (std::size_t lane = 0; i + lane < count; ++lane) {
    sums[lane] += std::fabs(x[i + lane]);
  }
  for (std::size_t half = 16; half > 0; half /= 2) {
    for (std::size_t lane = 0; lane < half; ++lane) sums[lane] += sums[lane + half];
  }
  return sums[0];
}

}  // namespace HWY_NAMESPACE
}  // namespace tersum::compressors
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tersum::compressors::kernels {
namespace {
HWY_EXPORT(add);
HWY_EXPORT(add_scaled);
HWY_EXPORT(multiply);
HWY_EXPORT(add_momentum);
HWY_EXPORT(zero_nonfinite);
HWY_EXPORT(max_magnitude);
HWY_EXPORT(absolute_sum);
}  // namespace

void add(const float* a, const float* b, float* out, std::size_t count) {
  HWY_DYNAMIC_DISPATCH(add)(a, b, out, count);
}

void add_scaled(float* accumulator, float scale, const float* x, std::size_t count) {
  HWY_DYNAMIC_DISPATCH(add_scaled)(accumulator, scale, x, count);
}

void multiply(const float* x, float scale, float* out, std::size_t count) {
  HWY_DYNAMIC_DISPATCH(multiply)(x, scale, out, count);
}

void add_momentum(const float* gradient, const float* velocity, const float* residual, float factor,
                  float* velocity_next, float* sum_next, std::size_t count) {
  HWY_DYNAMIC_DISPATCH(add_momentum)
  (gradient, velocity, residual, factor, velocity_next, sum_next, count);
}

void zero_nonfinite(float* x, std::size_t count) {
  HWY_DYNAMIC_DISPATCH(zero_nonfinite)(x, count);
}

std::uint32_t max_magnitude(const float* x, std::size_t count) {
  return HWY_DYNAMIC_DISPATCH(max_magnitude)(x, count);
}

float absolute_sum(const float* x, std::size_t count) {
  return HWY_DYNAMIC_DISPATCH(absolute_sum)(x, count);
}

}  // namespace tersum::compressors::kernels
#endif
