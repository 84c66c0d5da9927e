#include "compressors/philox.hpp"

#include <gtest/gtest.h>

#include <Random123/philox.h>

#include "compressors/hash.hpp"

namespace tersum::test {
namespace {

using namespace compressors;

TEST(Philox, StreamsAreKeyedAsDocumented) {
  const SliceContext context{.seed = 0x1111111122222222,
                             .step = 0x3333333344444444,
                             .key = 0x5555555566666666,
                             .offset = 99,
                             .rank = 7};
  const philox4x32_ctr_t counter = {{0x66666666, 0x55555555, 0x44444444, 0x33333333}};
  const philox4x32_key_t seed = {{0x22222222, 0x11111111}};
  const auto words = philox4x32(counter, seed);
  const DrawStream rounding = draw_stream(context, Purpose::Rounding);
  EXPECT_EQ(rounding.key[0], words.v[0]);
  EXPECT_EQ(rounding.key[1], words.v[1]);
  EXPECT_EQ(rounding.rank, 7u);
  EXPECT_EQ(rounding.purpose, 1u);
  const DrawStream shared = draw_stream(context, Purpose::IndexSet);
  EXPECT_EQ(shared.rank, 0u);
  EXPECT_EQ(shared.purpose, 2u);
  const philox4x32_ctr_t group = {{0x89abcdef, 0x01234567, 7, 1}};
  const philox4x32_key_t key = {{words.v[0], words.v[1]}};
  const auto expected = philox4x32(group, key);
  const auto drawn = draw(rounding, 0x0123456789abcdef);
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(drawn[i], expected.v[i]);
}

// The known answer of the generator's authors for an all-zero counter and key.
TEST(Philox, KnownAnswer) {
  const auto words = draw({{0, 0}, 0, 0}, 0);
  EXPECT_EQ(words, (std::array<std::uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
}

TEST(Philox, DrawsDependOnTheElementOnly) {
  const DrawStream stream =
      draw_stream({.seed = 1, .step = 2, .key = 3, .rank = 4}, Purpose::Rounding);
  // Across the place where the group number needs its upper word.
  for (const std::uint64_t first : {std::uint64_t{0}, (std::uint64_t{1} << 35) - 1000}) {
    std::vector<std::uint16_t> whole(2500);
    draw_16(stream, first, whole);
    for (std::size_t i = 0; i < whole.size(); ++i) {
      const std::uint64_t element = first + i;
      const std::uint32_t word = draw(stream, element / 8)[element % 8 / 2];
      ASSERT_EQ(whole[i], static_cast<std::uint16_t>(element % 2 == 0 ? word : word >> 16)) << i;
    }
    for (const std::size_t start : {1u, 7u, 8u, 100u, 513u}) {
      std::vector<std::uint16_t> part(700);
      draw_16(stream, first + start, part);
      ASSERT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + static_cast<long>(start)));
    }
  }
}

TEST(KeyHash, IsFnv1aWithItsPublishedValues) {
  EXPECT_EQ(key_hash(""), 0xcbf29ce484222325ull);
  EXPECT_EQ(key_hash("a"), 0xaf63dc4c8601ec8cull);
  EXPECT_EQ(key_hash("foobar"), 0x85944171f73967e8ull);
}

}  // namespace
}  // namespace tersum::test
