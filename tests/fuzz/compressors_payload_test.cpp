// Payloads from the wire are not trusted: whatever the bytes, a decoder decodes them or says
// Protocol, changes nothing in the latter case, and never reads or writes out of bounds (which the
// sanitizers see: every buffer here has exactly its size).
#include <gtest/gtest.h>

#include <random>

#include "conformance/compressors_support.hpp"

namespace tersum::test {
namespace {

class PayloadFuzz : public testing::TestWithParam<std::string> {
 protected:
  // Decodes in every way there is.
  void feed(const Bytes& payload, std::size_t count) {
    const SliceContext context{.seed = 1, .step = 2, .key = 3};
    Floats output(count);
    const bool decodes = accepted([&] { compressor_->decompress(payload, context, output); });
    Floats sum(count, 1.0f);
    const bool adds = accepted([&] { compressor_->decompress_add(payload, context, 0.5f, sum); });
    if (!adds) {
      ASSERT_EQ(sum, Floats(count, 1.0f)) << "changed before it was refused";
    }
    Floats values(count, 1.0f);
    const bool clears = accepted([&] { compressor_->clear_sent(payload, context, values); });
    if (!clears) {
      ASSERT_EQ(values, Floats(count, 1.0f)) << "changed before it was refused";
    }
    ASSERT_EQ(decodes, adds);
    if (compressor_->traits().sparse) {
      ASSERT_EQ(decodes, clears);
    }
    accepted_ += decodes ? 1 : 0;
  }

  template <class Call>
  static bool accepted(const Call& call) {
    try {
      call();
      return true;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::Protocol) << error.what();
      return false;
    }
  }

  Bytes valid(std::size_t count, unsigned seed) {
    return encode(*compressor_, gaussian(count, seed), {.seed = 1, .step = 2, .key = 3});
  }

  std::shared_ptr<const Compressor> compressor_ = make_compressor(GetParam());
  std::mt19937 random_{12345};
  std::size_t accepted_ = 0;
};

constexpr std::size_t kCounts[] = {0, 1, 2, 33, 100, 1001};

TEST_P(PayloadFuzz, RandomBytes) {
  for (const std::size_t count : kCounts) {
    for (int round = 0; round < 100; ++round) {
      Bytes payload(random_() % (compressor_->max_payload_bytes(count) + 20));
      for (auto& byte : payload) byte = static_cast<std::byte>(random_());
      feed(payload, count);
    }
  }
}

TEST_P(PayloadFuzz, RandomBodiesBehindAGoodHeader) {
  for (const std::size_t count : kCounts) {
    for (int round = 0; round < 200; ++round) {
      Bytes payload = valid(count, 1);
      for (std::size_t i = sizeof(PayloadHeader); i < payload.size(); ++i) {
        if (round % 2 == 0 || random_() % 8 == 0) payload[i] = static_cast<std::byte>(random_());
      }
      feed(payload, count);
    }
  }
}

TEST_P(PayloadFuzz, Truncations) {
  for (const std::size_t count : {1u, 33u, 1001u}) {
    const Bytes payload = valid(count, 2);
    const std::size_t stride = payload.size() / 300 + 1;
    for (std::size_t size = 0; size < payload.size(); size += size < 40 ? 1 : stride) {
      Bytes cut(payload.begin(), payload.begin() + static_cast<std::ptrdiff_t>(size));
      feed(cut, count);
      // The same with a header that agrees with the new size.
      if (size < sizeof(PayloadHeader)) continue;
      const auto body = static_cast<std::uint32_t>(size - sizeof(PayloadHeader));
      std::memcpy(cut.data() + 4, &body, sizeof body);
      feed(cut, count);
    }
    if (compressor_->traits().fixed_size) {
      EXPECT_EQ(accepted_, 0u);
    }
  }
}

TEST_P(PayloadFuzz, FlippedBits) {
  for (const std::size_t count : {1u, 33u, 1001u}) {
    const Bytes payload = valid(count, 3);
    const std::size_t all_bits = payload.size() * 8;
    const std::size_t rounds = std::min<std::size_t>(all_bits, 600);
    for (std::size_t round = 0; round < rounds; ++round) {
      // All bits of short payloads and of every header; a sample of the others.
      const std::size_t bit = all_bits <= 600 || round < 128 ? round : random_() % all_bits;
      Bytes flipped = payload;
      flipped[bit / 8] ^= std::byte{1} << (bit % 8);
      const std::size_t before = accepted_;
      feed(flipped, count);
      if (bit < 8 * sizeof(PayloadHeader)) {
        EXPECT_EQ(accepted_, before) << "a header with bit " << bit << " flipped was accepted";
      }
    }
  }
}

TEST_P(PayloadFuzz, HeadersThatDescribeSomethingElse) {
  for (const std::size_t count : kCounts) {
    for (const std::uint64_t other : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{34},
                                      std::uint64_t{1} << 32, ~std::uint64_t{0}}) {
      Bytes payload = valid(count, 4);
      std::memcpy(payload.data() + 8, &other, sizeof other);
      feed(payload, count);
      feed(payload, static_cast<std::size_t>(other % 2000));
      payload = valid(count, 4);
      const auto body = static_cast<std::uint32_t>(other);
      std::memcpy(payload.data() + 4, &body, sizeof body);
      feed(payload, count);
    }
  }
}

// A good payload still decodes: the tests above would pass with a decoder that refuses everything.
TEST_P(PayloadFuzz, GoodPayloadsAreAccepted) {
  for (const std::size_t count : kCounts) feed(valid(count, 5), count);
  EXPECT_EQ(accepted_, std::size(kCounts));
}

std::vector<std::string> undecorated_specs() {
  auto specs = all_specs();
  std::erase_if(specs, [](const std::string& spec) { return spec.find('+') != spec.npos; });
  return specs;
}

INSTANTIATE_TEST_SUITE_P(AllCompressors, PayloadFuzz, testing::ValuesIn(undecorated_specs()),
                         [](const auto& spec) { return test_name(spec.param); });

}  // namespace
}  // namespace tersum::test
