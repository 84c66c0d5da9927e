// What every registered compressor promises about its payloads and its declarations.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <functional>
#include <limits>

#include "compressors/convert.hpp"
#include "conformance/compressors_support.hpp"

namespace tersum::test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

class CompressorPayload : public testing::TestWithParam<std::string> {
 protected:
  std::shared_ptr<const Compressor> compressor_ = make_compressor(GetParam());
  const CompressorTraits& traits_ = compressor_->traits();

  std::vector<std::size_t> counts() const {
    std::vector<std::size_t> result = {0, 1, 2, 7, 1000, 4099};
    if (const std::size_t block = traits_.block_count; block > 1) {
      result.insert(result.end(), {block - 1, block, block + 1, 3 * block});
    }
    return result;
  }
};

// Vectors on which methods tend to break.
std::vector<Floats> adversaries(std::size_t count) {
  std::vector<Floats> result = {Floats(count, 0.0f), Floats(count, -0.0f), Floats(count, -3.25f),
                                Floats(count, 1e-42f), gaussian(count, 1, 1e-30f)};
  Floats one_hot(count, 0.0f);
  Floats alternating(count);
  Floats two_values(count);
  for (std::size_t i = 0; i < count; ++i) {
    alternating[i] = i % 2 == 0 ? 1e4f : -1e-6f;
    two_values[i] = i % 3 == 0 ? 2.0f : -2.0f;
  }
  if (count > 0) one_hot[count / 2] = -5.0f;
  result.push_back(one_hot);
  result.push_back(alternating);
  result.push_back(two_values);
  result.push_back(gaussian(count, 2));
  return result;
}

TEST_P(CompressorPayload, SpecIsCanonicalAndReadsBack) {
  const auto again = make_compressor(compressor_->spec());
  EXPECT_EQ(again->spec(), compressor_->spec());
  EXPECT_EQ(again->traits().name, traits_.name);
  EXPECT_EQ(again->traits().wire_id, traits_.wire_id);
  EXPECT_EQ(again->traits().block_count, traits_.block_count);
  const Floats x = gaussian(1000, 7);
  EXPECT_EQ(encode(*again, x), encode(*compressor_, x));
}

TEST_P(CompressorPayload, SizesKeepTheirPromise) {
  auto all = counts();
  all.push_back(1'000'003);
  for (const std::size_t count : all) {
    const std::size_t bound = compressor_->max_payload_bytes(count);
    for (const Floats& x :
         count < 10000 ? adversaries(count) : std::vector<Floats>{gaussian(count, 3)}) {
      // Bytes behind the bound are not the compressor's.
      Bytes payload(bound + 8, std::byte{0xa5});
      const auto state = compressor_->make_state(count);
      const std::size_t written =
          compressor_->compress(x, {}, state.get(), std::span(payload).first(bound));
      ASSERT_LE(written, bound) << count;
      if (traits_.fixed_size) {
        ASSERT_EQ(written, bound) << count;
      }
      ASSERT_EQ(Bytes(payload.end() - 8, payload.end()), Bytes(8, std::byte{0xa5})) << count;
      PayloadHeader header;
      ASSERT_GE(written, sizeof header);
      std::memcpy(&header, payload.data(), sizeof header);
      EXPECT_EQ(header.wire_id, traits_.wire_id);
      EXPECT_EQ(header.wire_version, traits_.wire_version);
      EXPECT_EQ(header.body_bytes, written - sizeof header);
      EXPECT_EQ(header.count, count);
    }
  }
}

TEST_P(CompressorPayload, EqualInputsGiveEqualBytesAndInputsStay) {
  const SliceContext context{.seed = 5, .step = 6, .key = 7, .rank = 1};
  for (const std::size_t count : counts()) {
    for (const Floats& x : adversaries(count)) {
      const Floats copy = x;
      const Bytes first = encode(*compressor_, x, context);
      ASSERT_EQ(bits(x), bits(copy));
      ASSERT_EQ(encode(*compressor_, x, context), first);
    }
  }
}

TEST_P(CompressorPayload, DecodingAddsWhatItDecodes) {
  for (const std::size_t count : counts()) {
    for (const Floats& x : adversaries(count)) {
      const Bytes payload = encode(*compressor_, x);
      const Floats decoded = decode(*compressor_, payload, count);
      const Floats base = gaussian(count, 4);
      for (const float scale : {1.0f, -1.0f, 0.3f}) {
        Floats sum = base;
        compressor_->decompress_add(payload, {}, scale, sum);
        for (std::size_t i = 0; i < count; ++i) {
          volatile const float product = scale * decoded[i];
          ASSERT_EQ(sum[i], base[i] + product) << count << " " << i;
        }
      }
    }
  }
}

TEST_P(CompressorPayload, PayloadsNeedNoAlignmentToDecode) {
  const Floats x = gaussian(777, 4);
  const Bytes payload = encode(*compressor_, x);
  Bytes shifted(payload.size() + 3);
  std::copy(payload.begin(), payload.end(), shifted.begin() + 3);
  EXPECT_EQ(bits(decode(*compressor_, std::span<const std::byte>(shifted).subspan(3), 777)),
            bits(decode(*compressor_, payload, 777)));
}

TEST_P(CompressorPayload, ZerosDecodeToZeros) {
  for (const std::size_t count : counts()) {
    for (const float value : round_trip(*compressor_, Floats(count, 0.0f))) {
      ASSERT_EQ(value, 0.0f);
    }
  }
}

TEST_P(CompressorPayload, NonFiniteElementsAreLoud) {
  if (traits_.sparse && traits_.randomised) GTEST_SKIP() << "sees chosen elements only";
  for (const float bad : {kNan, kInfinity, -kInfinity}) {
    for (const std::size_t position : {0u, 500u, 999u}) {
      Floats x = gaussian(1000, 5);
      x[position] = bad;
      EXPECT_FALSE(std::isfinite(round_trip(*compressor_, x)[position])) << bad;
    }
  }
}

TEST_P(CompressorPayload, CutsAtBlocksDoNotShow) {
  const std::size_t block = traits_.block_count;
  if (block == 0) GTEST_SKIP() << "is never cut";
  const std::size_t count = 6 * block + block / 2 + 5;
  const auto whole_state = compressor_->make_state(count);
  const auto cut_state = compressor_->make_state(count);
  for (unsigned step = 0; step < 3; ++step) {
    const Floats x = gaussian(count, step);
    SliceContext context{.seed = 1, .step = step, .key = 2, .rank = 3};
    const Floats whole =
        decode(*compressor_, encode(*compressor_, x, context, whole_state.get()), count, context);
    Floats parts;
    for (std::size_t first = 0; first < count;) {
      const std::size_t size = std::min((1 + first % 3) * block, count - first);
      context.offset = first;
      const auto part = std::span(x).subspan(first, size);
      const Floats decoded =
          decode(*compressor_, encode(*compressor_, part, context, cut_state.get()), size, context);
      parts.insert(parts.end(), decoded.begin(), decoded.end());
      first += size;
    }
    ASSERT_EQ(bits(parts), bits(whole)) << step;
    if (whole_state) whole_state->commit();
    if (cut_state) cut_state->commit();
  }
}

TEST_P(CompressorPayload, LinearBodiesSumToTheBodyOfTheSum) {
  if (traits_.aggregation != Aggregation::Linear) GTEST_SKIP() << "is not linear";
  for (const std::size_t count : counts()) {
    const SliceContext one{.seed = 1, .step = 2, .key = 3, .rank = 0};
    const SliceContext two{.seed = 1, .step = 2, .key = 3, .rank = 1};
    Bytes a = encode(*compressor_, gaussian(count, 1), one);
    const Bytes b = encode(*compressor_, gaussian(count, 2), two);
    const Floats expected_a = decode(*compressor_, a, count, one);
    const Floats expected_b = decode(*compressor_, b, count, two);
    ASSERT_EQ(a.size(), b.size());
    const std::size_t header = sizeof(PayloadHeader);
    const std::size_t elements = (a.size() - header) / element_bytes(traits_.payload_dtype);
    Floats sum(elements);
    Floats other(elements);
    compressors::to_float(traits_.payload_dtype, a.data() + header, sum.data(), elements);
    compressors::to_float(traits_.payload_dtype, b.data() + header, other.data(), elements);
    for (std::size_t i = 0; i < elements; ++i) sum[i] += other[i];
    compressors::from_float(sum.data(), traits_.payload_dtype, a.data() + header, elements);
    const Floats decoded = decode(*compressor_, a, count, two);
    for (std::size_t i = 0; i < count; ++i) {
      // The sum is rounded to the body's type once.
      const float exact = expected_a[i] + expected_b[i];
      std::byte rounded[8];
      float expected = 0;
      compressors::from_float(&exact, traits_.payload_dtype, rounded, 1);
      compressors::to_float(traits_.payload_dtype, rounded, &expected, 1);
      ASSERT_EQ(decoded[i], expected) << count << " " << i;
    }
  }
}

TEST_P(CompressorPayload, ClearSentZeroesWhatThePayloadCarries) {
  const std::size_t count = 3000;
  const Floats x = gaussian(count, 6);  // no element is zero
  const Bytes payload = encode(*compressor_, x);
  const Floats decoded = decode(*compressor_, payload, count);
  Floats values(count, 9.0f);
  compressor_->clear_sent(payload, {}, values);
  for (std::size_t i = 0; i < count; ++i) {
    ASSERT_EQ(values[i], traits_.sparse && decoded[i] != 0.0f ? 0.0f : 9.0f) << i;
  }
}

TEST_P(CompressorPayload, OtherCountsAndBrokenPayloadsChangeNothing) {
  const std::size_t count = 700;
  const Bytes good = encode(*compressor_, gaussian(count, 8));
  Bytes other_id = good;
  other_id[0] ^= std::byte{0xff};
  Bytes other_version = good;
  other_version[2] ^= std::byte{0xff};
  Bytes other_count = good;
  other_count[8] ^= std::byte{1};
  Bytes longer = good;
  longer.push_back(std::byte{0});
  for (const Bytes& bad :
       {other_id, other_version, other_count, longer, Bytes(), Bytes(good.begin(), good.end() - 1),
        Bytes(good.begin(), good.begin() + 15)}) {
    Floats values(count, 3.0f);
    for (const auto& decode_it : std::initializer_list<std::function<void()>>{
             [&] { compressor_->decompress_add(bad, {}, 1.0f, values); },
             [&] { decode(*compressor_, bad, count); },
             [&] {
               compressor_->clear_sent(bad, {}, values);
               if (!traits_.sparse) throw Error(Code::Protocol, "does nothing");
             }}) {
      try {
        decode_it();
        FAIL() << bad.size();
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), Code::Protocol);
      }
    }
    EXPECT_EQ(values, Floats(count, 3.0f));
  }
}

TEST_P(CompressorPayload, TooSmallABufferIsRefused) {
  const Floats x = gaussian(300, 1);
  const auto state = compressor_->make_state(300);
  Bytes payload(compressor_->max_payload_bytes(300) - 1);
  try {
    compressor_->compress(x, {}, state.get(), payload);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::InvalidArgument);
  }
}

INSTANTIATE_TEST_SUITE_P(AllCompressors, CompressorPayload, testing::ValuesIn(all_specs()),
                         [](const auto& spec) { return test_name(spec.param); });

}  // namespace
}  // namespace tersum::test
