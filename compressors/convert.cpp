// Casts as integer arithmetic on the bits, so that every instruction set gives the same result:
// hardware casts differ in what they do to NaN, and not every target has them for fp16 and bf16.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compressors/convert.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include <cstring>
#include <string>

#include "compressors/convert.hpp"
#include "compressors/simd-inl.hpp"
#include "tersum/error.hpp"

HWY_BEFORE_NAMESPACE();
namespace tersum::compressors {
namespace HWY_NAMESPACE {

void float_to_half(const float* in, std::uint16_t* out, std::size_t count) {
  for_each_vector(count, [=](auto d, std::size_t i) HWY_ATTR {
    const hn::RebindToUnsigned<decltype(d)> du;
    const hn::RebindToSigned<decltype(d)> di;
    const hn::Rebind<std::uint16_t, decltype(d)> d16;
    const auto bits = hn::BitCast(du, hn::LoadU(d, in + i));
    const auto magnitude = hn::And(bits, hn::Set(du, 0x7fffffffu));
    const auto sign = hn::ShiftRight<16>(hn::AndNot(hn::Set(du, 0x7fffffffu), bits));
    // Normal halves: round away 13 bits of the fraction to nearest even, move the exponent's bias.
    const auto odd = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(du, 1u));
    const auto rounded = hn::Add(hn::Add(magnitude, hn::Set(du, 0xfffu)), odd);
    const auto normal = hn::Sub(hn::ShiftRight<13>(rounded), hn::Set(du, 112u << 10));
    // Subnormal halves: the last place of 0.5f is 2^-24, theirs, so the addition rounds for us.
    const auto shifted = hn::Add(hn::BitCast(d, magnitude), hn::Set(d, 0.5f));
    const auto subnormal = hn::Sub(hn::BitCast(du, shifted), hn::Set(du, 0x3f000000u));
    const auto nan =
        hn::Or(hn::And(hn::ShiftRight<13>(magnitude), hn::Set(du, 0x3ffu)), hn::Set(du, 0x7e00u));
    const auto signed_magnitude = hn::BitCast(di, magnitude);
    auto half = hn::IfThenElse(
        hn::RebindMask(du, hn::Lt(signed_magnitude, hn::Set(di, 0x38800000))), subnormal, normal);
    half = hn::IfThenElse(hn::RebindMask(du, hn::Gt(signed_magnitude, hn::Set(di, 0x477fefff))),
                          hn::Set(du, 0x7c00u), half);
    half = hn::IfThenElse(hn::RebindMask(du, hn::Gt(signed_magnitude, hn::Set(di, 0x7f800000))),
                          nan, half);
    hn::StoreU(hn::DemoteTo(d16, hn::BitCast(di, hn::Or(half, sign))), d16, out + i);
  });
}

void half_to_float(const std::uint16_t* in, float* out, std::size_t count) {
  for_each_vector(count, [=](auto d, std::size_t i) HWY_ATTR {
    const hn::RebindToUnsigned<decltype(d)> du;
    const hn::RebindToSigned<decltype(d)> di;
    const hn::Rebind<std::uint16_t, decltype(d)> d16;
    const auto half = hn::PromoteTo(du, hn::LoadU(d16, in + i));
    const auto magnitude = hn::And(half, hn::Set(du, 0x7fffu));
    const auto sign = hn::ShiftLeft<16>(hn::And(half, hn::Set(du, 0x8000u)));
    const auto signed_magnitude = hn::BitCast(di, magnitude);
    const auto moved = hn::Add(hn::ShiftLeft<13>(magnitude), hn::Set(du, 112u << 23));
    const auto special = hn::Add(moved, hn::Set(du, 112u << 23));
    const auto subnormal = hn::BitCast(
        du, hn::Mul(hn::ConvertTo(d, signed_magnitude), hn::Set(d, 5.9604644775390625e-8f)));
    auto bits = hn::IfThenElse(hn::RebindMask(du, hn::Gt(signed_magnitude, hn::Set(di, 0x7bff))),
                               special, moved);
    bits = hn::IfThenElse(hn::RebindMask(du, hn::Lt(signed_magnitude, hn::Set(di, 0x400))),
                          subnormal, bits);
    hn::StoreU(hn::BitCast(d, hn::Or(bits, sign)), d, out + i);
  });
}

void float_to_bfloat(const float* in, std::uint16_t* out, std::size_t count) {
  for_each_vector(count, [=](auto d, std::size_t i) HWY_ATTR {
    const hn::RebindToUnsigned<decltype(d)> du;
    const hn::RebindToSigned<decltype(d)> di;
    const hn::Rebind<std::uint16_t, decltype(d)> d16;
    const auto bits = hn::BitCast(du, hn::LoadU(d, in + i));
    const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1u));
    const auto rounded = hn::ShiftRight<16>(hn::Add(hn::Add(bits, hn::Set(du, 0x7fffu)), odd));
    const auto quiet = hn::Or(hn::ShiftRight<16>(bits), hn::Set(du, 0x40u));
    const auto magnitude = hn::BitCast(di, hn::And(bits, hn::Set(du, 0x7fffffffu)));
    const auto is_nan = hn::RebindMask(du, hn::Gt(magnitude, hn::Set(di, 0x7f800000)));
    const auto result = hn::IfThenElse(is_nan, quiet, rounded);
    hn::StoreU(hn::DemoteTo(d16, hn::BitCast(di, result)), d16, out + i);
  });
}

void bfloat_to_float(const std::uint16_t* in, float* out, std::size_t count) {
  for_each_vector(count, [=](auto d, std::size_t i) HWY_ATTR {
    const hn::RebindToUnsigned<decltype(d)> du;
    const hn::Rebind<std::uint16_t, decltype(d)> d16;
    const auto bits = hn::ShiftLeft<16>(hn::PromoteTo(du, hn::LoadU(d16, in + i)));
    hn::StoreU(hn::BitCast(d, bits), d, out + i);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace tersum::compressors
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tersum::compressors {
namespace {

HWY_EXPORT(float_to_half);
HWY_EXPORT(half_to_float);
HWY_EXPORT(float_to_bfloat);
HWY_EXPORT(bfloat_to_float);

[[noreturn]] void refuse(DType dtype) {
  throw Error(Code::InvalidArgument,
              "no conversion between fp32 and " + std::string(to_string(dtype)) +
                  "; compression takes fp16, bf16, fp32 and fp64 gradients only");
}

// fp64 is read and written through memcpy: it is the rare case, and its buffer may be unaligned.
void double_to_float(const void* in, float* out, std::size_t count) {
  const char* bytes = static_cast<const char*>(in);
  for (std::size_t i = 0; i < count; ++i) {
    double value;
    std::memcpy(&value, bytes + i * sizeof value, sizeof value);
    out[i] = static_cast<float>(value);
  }
}

void float_to_double(const float* in, void* out, std::size_t count) {
  char* bytes = static_cast<char*>(out);
  for (std::size_t i = 0; i < count; ++i) {
    const double value = in[i];
    std::memcpy(bytes + i * sizeof value, &value, sizeof value);
  }
}

}  // namespace

void to_float(DType dtype, const void* in, float* out, std::size_t count) {
  if (count == 0) return;
  switch (dtype) {
    case DType::Float16:
      return HWY_DYNAMIC_DISPATCH(half_to_float)(static_cast<const std::uint16_t*>(in), out, count);
    case DType::BFloat16:
      return HWY_DYNAMIC_DISPATCH(bfloat_to_float)(static_cast<const std::uint16_t*>(in), out,
                                                   count);
    case DType::Float32:
      if (in != out) std::memcpy(out, in, count * sizeof(float));
      return;
    case DType::Float64:
      return double_to_float(in, out, count);
    default:
      refuse(dtype);
  }
}

void from_float(const float* in, DType dtype, void* out, std::size_t count) {
  if (count == 0) return;
  switch (dtype) {
    case DType::Float16:
      return HWY_DYNAMIC_DISPATCH(float_to_half)(in, static_cast<std::uint16_t*>(out), count);
    case DType::BFloat16:
      return HWY_DYNAMIC_DISPATCH(float_to_bfloat)(in, static_cast<std::uint16_t*>(out), count);
    case DType::Float32:
      if (in != out) std::memcpy(out, in, count * sizeof(float));
      return;
    case DType::Float64:
      return float_to_double(in, out, count);
    default:
      refuse(dtype);
  }
}

}  // namespace tersum::compressors
#endif  // HWY_ONCE
