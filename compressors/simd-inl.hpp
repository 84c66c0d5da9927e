// Per-target helpers of the SIMD kernels. Included once for every instruction set, as Highway's
// foreach_target asks; only kernel files include it.
#if defined(TERSUM_COMPRESSORS_SIMD_INL_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef TERSUM_COMPRESSORS_SIMD_INL_HPP
#undef TERSUM_COMPRESSORS_SIMD_INL_HPP
#else
#define TERSUM_COMPRESSORS_SIMD_INL_HPP
#endif

#include <hwy/highway.h>

#include <cstddef>

HWY_BEFORE_NAMESPACE();
namespace tersum::compressors {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Calls op(d, i) for whole vectors of floats, then op(d1, i) with a vector of one lane for each
// element that is left: every element sees the same operations, so the vector width cannot show.
template <class Op>
HWY_INLINE void for_each_vector(std::size_t count, const Op& op) {
  const hn::ScalableTag<float> d;
  const std::size_t lanes = hn::Lanes(d);
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes) op(d, i);
  const hn::CappedTag<float, 1> one;
  for (; i < count; ++i) op(one, i);
}

}  // namespace HWY_NAMESPACE
}  // namespace tersum::compressors
HWY_AFTER_NAMESPACE();

#endif
