// Every instruction set of this machine against plain loops: the same bits.
#include "compressors/kernels.hpp"

#include <gtest/gtest.h>
#include <hwy/highway.h>

#include <bit>
#include <cmath>
#include <limits>

#include "compressors/convert.hpp"
#include "compressors/philox.hpp"
#include "conformance/compressors_support.hpp"

namespace tersum::test {
namespace {

namespace kernels = compressors::kernels;

const std::size_t kCounts[] = {0, 1, 3, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 100, 1000, 1024};

class Kernels : public testing::TestWithParam<std::int64_t> {
 protected:
  void SetUp() override {
    hwy::SetSupportedTargetsForTest(GetParam());
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
  void TearDown() override {
    hwy::SetSupportedTargetsForTest(0);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
};

// Gaussian values with every special kind strewn in.
Floats mixed(std::size_t count, unsigned seed) {
  Floats values = gaussian(count, seed);
  const float specials[] = {0.0f,
                            -0.0f,
                            std::numeric_limits<float>::infinity(),
                            -std::numeric_limits<float>::infinity(),
                            std::numeric_limits<float>::quiet_NaN(),
                            std::bit_cast<float>(0xff812345u),
                            std::numeric_limits<float>::denorm_min(),
                            -1e-40f,
                            std::numeric_limits<float>::max(),
                            65519.0f,
                            65520.0f,
                            -6e-8f};
  for (std::size_t i = 0; i < count; i += 5) values[i] = specials[(i / 5 + seed) % 12];
  return values;
}

TEST_P(Kernels, Arithmetic) {
  for (const std::size_t n : kCounts) {
    const Floats a = mixed(n, 1);
    const Floats b = gaussian(n, 2);
    const Floats c = gaussian(n, 3, 1e-3f);
    Floats out(n);
    Floats expected(n);
    kernels::add(a.data(), b.data(), out.data(), n);
    for (std::size_t i = 0; i < n; ++i) expected[i] = a[i] + b[i];
    ASSERT_EQ(bits(out), bits(expected));
    out = b;
    kernels::add_scaled(out.data(), 0.37f, c.data(), n);
    for (std::size_t i = 0; i < n; ++i) {
      volatile const float product = 0.37f * c[i];  // rounded on its own
      expected[i] = b[i] + product;
    }
    ASSERT_EQ(bits(out), bits(expected));
    kernels::zero_nonfinite((out = a).data(), n);
    for (std::size_t i = 0; i < n; ++i) expected[i] = std::isfinite(a[i]) ? a[i] : 0.0f;
    ASSERT_EQ(bits(out), bits(expected));
    Floats velocity(n);
    kernels::add_momentum(b.data(), c.data(), out.data(), 0.9f, velocity.data(), expected.data(),
                          n);
    for (std::size_t i = 0; i < n; ++i) {
      volatile const float decayed = 0.9f * c[i];
      ASSERT_EQ(velocity[i], decayed + b[i]);
      ASSERT_EQ(expected[i], out[i] + velocity[i]);
    }
  }
}

TEST_P(Kernels, Reductions) {
  for (const std::size_t n : kCounts) {
    Floats x = gaussian(n, 4);
    std::uint32_t largest = 0;
    float lanes[32] = {};
    for (std::size_t i = 0; i < n; ++i) {
      largest = std::max(largest, std::bit_cast<std::uint32_t>(std::fabs(x[i])));
      lanes[i % 32] += std::fabs(x[i]);
    }
    for (std::size_t half = 16; half > 0; half /= 2) {
      for (std::size_t l = 0; l < half; ++l) lanes[l] += lanes[l + half];
    }
    ASSERT_EQ(kernels::max_magnitude(x.data(), n), largest) << n;
    ASSERT_EQ(kernels::absolute_sum(x.data(), n), lanes[0]) << n;
    for (std::size_t i = 0; i < n; i += 7) {
      Floats y = x;
      y[i] = std::bit_cast<float>(0xffc00001u);
      ASSERT_EQ(kernels::max_magnitude(y.data(), n), 0x7fc00001u);
      ASSERT_TRUE(std::isnan(kernels::absolute_sum(y.data(), n)));
    }
  }
}

TEST_P(Kernels, Quantisation) {
  for (const std::size_t n : kCounts) {
    for (const float scale : {3.5f, 1e-44f, 3.4e38f}) {
      for (const int levels : {1, 7, 127}) {
        Floats x = gaussian(n, 5, scale / 3);
        for (std::size_t i = 0; i < n; ++i) x[i] = std::clamp(x[i], -scale, scale);
        if (n > 2) x[1] = scale, x[2] = -scale;
        std::vector<std::uint16_t> draws(n);
        compressors::draw_16({{1, 2}, 3, 4}, 5, draws);
        if (n > 3) draws[1] = draws[2] = 0xffff, draws[3] = 0;
        std::vector<std::int8_t> nearest(n);
        std::vector<std::int8_t> stochastic(n);
        kernels::quantise_nearest(x.data(), scale, levels, nearest.data(), n);
        kernels::quantise_stochastic(x.data(), scale, levels, draws.data(), stochastic.data(), n);
        Floats decoded(n);
        kernels::dequantise(nearest.data(), scale, levels, decoded.data(), n);
        for (std::size_t i = 0; i < n; ++i) {
          const float y = x[i] / scale * static_cast<float>(levels);
          ASSERT_EQ(nearest[i], static_cast<std::int8_t>(std::nearbyint(y)));
          const float draw = (static_cast<float>(draws[i]) + 0.5f) * 0x1p-16f;
          ASSERT_EQ(stochastic[i], static_cast<std::int8_t>(std::floor(y + draw)));
          ASSERT_LE(std::abs(stochastic[i]), levels);
          const float ratio = static_cast<float>(nearest[i]) * (1.0f / static_cast<float>(levels));
          ASSERT_EQ(decoded[i], ratio * scale);
        }
      }
    }
  }
}

TEST_P(Kernels, CodesOfEveryWidthPackBitByBit) {
  std::mt19937 generator(6);
  for (const std::size_t n : kCounts) {
    for (unsigned width = 2; width <= 8; ++width) {
      std::vector<std::int8_t> codes(n);
      const int half = 1 << (width - 1);
      for (auto& code : codes) {
        code = static_cast<std::int8_t>(static_cast<int>(generator() % (2u * half)) - half);
      }
      Bytes packed((n * width + 7) / 8, std::byte{0xff});
      kernels::pack_codes(codes.data(), static_cast<int>(width), packed.data(), n);
      Bytes expected(packed.size());
      for (std::size_t bit = 0; bit < n * width; ++bit) {
        const auto code = static_cast<unsigned>(codes[bit / width]);
        if (code >> (bit % width) & 1) expected[bit / 8] |= std::byte{1} << (bit % 8);
      }
      ASSERT_EQ(packed, expected) << n << " " << width;
      std::vector<std::int8_t> back(n);
      kernels::unpack_codes(packed.data(), static_cast<int>(width), back.data(), n);
      ASSERT_EQ(back, codes) << n << " " << width;
    }
  }
}

TEST_P(Kernels, Signs) {
  for (const std::size_t n : kCounts) {
    const Floats x = mixed(n, 7);
    Bytes packed((n + 7) / 8, std::byte{0xff});
    kernels::pack_signs(x.data(), packed.data(), n);
    Bytes expected(packed.size());
    for (std::size_t i = 0; i < n; ++i) {
      if (std::signbit(x[i])) expected[i / 8] |= std::byte{1} << (i % 8);
    }
    ASSERT_EQ(packed, expected) << n;
    Floats unpacked(n);
    kernels::unpack_signs(packed.data(), 2.5f, unpacked.data(), n);
    for (std::size_t i = 0; i < n; ++i) ASSERT_EQ(unpacked[i], std::copysign(2.5f, x[i])) << i;
  }
}

TEST_P(Kernels, SelectionOfLargeMagnitudes) {
  for (const std::size_t n : kCounts) {
    const Floats x = mixed(n, 8);
    for (const std::uint32_t threshold : {0u, 1u, 0x3f000000u, 0x7f800000u, 0x7fc00000u}) {
      std::vector<std::uint32_t> found(n + kernels::kSelectPadding);
      found.resize(kernels::select_at_least(x.data(), threshold, found.data(), n));
      std::vector<std::uint32_t> expected;
      for (std::uint32_t i = 0; i < n; ++i) {
        if ((std::bit_cast<std::uint32_t>(x[i]) & 0x7fffffffu) >= threshold) expected.push_back(i);
      }
      ASSERT_EQ(found, expected) << n << " " << threshold;
    }
  }
}

TEST_P(Kernels, CastsInVectorsEqualCastsOneByOne) {
  for (const DType dtype : {DType::Float16, DType::BFloat16}) {
    for (const std::size_t n : kCounts) {
      const Floats x = mixed(n, 9);
      std::vector<std::uint16_t> together(n);
      std::vector<std::uint16_t> single(n);
      compressors::from_float(x.data(), dtype, together.data(), n);
      for (std::size_t i = 0; i < n; ++i) compressors::from_float(&x[i], dtype, &single[i], 1);
      ASSERT_EQ(together, single);
      Floats wide(n);
      Floats wide_single(n);
      compressors::to_float(dtype, together.data(), wide.data(), n);
      for (std::size_t i = 0; i < n; ++i) {
        compressors::to_float(dtype, &single[i], &wide_single[i], 1);
      }
      ASSERT_EQ(bits(wide), bits(wide_single));
    }
  }
}

TEST_P(Kernels, DrawsEqualTheScalarGenerator) {
  std::vector<std::uint16_t> draws(3000);
  const compressors::DrawStream stream{{0x12345678, 0x9abcdef0}, 5, 1};
  compressors::draw_16(stream, (std::uint64_t{1} << 35) - 800, draws);
  for (std::size_t i = 0; i < draws.size(); ++i) {
    const std::uint64_t element = (std::uint64_t{1} << 35) - 800 + i;
    const std::uint32_t word = compressors::draw(stream, element / 8)[element % 8 / 2];
    ASSERT_EQ(draws[i], static_cast<std::uint16_t>(word >> (16 * (element % 2))));
  }
}

// Whole methods: payloads of the best instruction set and of this one are equal.
TEST_P(Kernels, PayloadsDoNotDependOnTheInstructionSet) {
  const Floats x = gaussian(5003, 10);
  for (const std::string& spec : all_specs()) {
    const auto compressor = make_compressor(spec);
    const Bytes here = encode(*compressor, x, {.seed = 3});
    const Floats decoded_here = decode(*compressor, here, x.size(), {.seed = 3});
    TearDown();
    const Bytes best = encode(*compressor, x, {.seed = 3});
    const Floats decoded_best = decode(*compressor, best, x.size(), {.seed = 3});
    SetUp();
    ASSERT_EQ(here, best) << spec;
    ASSERT_EQ(bits(decoded_here), bits(decoded_best)) << spec;
  }
}

INSTANTIATE_TEST_SUITE_P(OnTarget, Kernels, testing::ValuesIn(hwy::SupportedAndGeneratedTargets()),
                         [](const testing::TestParamInfo<std::int64_t>& target) {
                           return std::string(hwy::TargetName(target.param));
                         });

}  // namespace
}  // namespace tersum::test
