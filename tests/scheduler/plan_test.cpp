#include "scheduler/plan.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "scheduler/hash.hpp"
#include "tersum/error.hpp"

namespace tersum::scheduler {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

PlanInput gradient(const std::string& key, std::size_t count, int position,
                   const std::string& group = "fp32", std::size_t block_count = 1) {
  return {key, count, 4, position, group, block_count};
}

void expect_invalid(const std::function<void()>& call, const std::string& text) {
  try {
    call();
    FAIL() << "expected an error with '" << text << "'";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::InvalidArgument);
    EXPECT_THAT(error.what(), HasSubstr(text));
  }
}

TEST(Plan, FusesNeighboursInBackwardOrder) {
  const Plan plan = make_plan({gradient("a", 10, 0), gradient("b", 20, 1), gradient("c", 30, 2)},
                              {.bucket_bytes = 1000, .slice_bytes = 1000});
  EXPECT_THAT(plan.buckets, ElementsAre(ElementsAre(2, 1, 0)));
  ASSERT_EQ(plan.slices.size(), 1u);
  EXPECT_THAT(plan.slices[0].segments,
              ElementsAre(Segment{2, 0, 30}, Segment{1, 0, 20}, Segment{0, 0, 10}));
  EXPECT_EQ(plan.slices[0].bytes, 240u);
  EXPECT_EQ(plan.slices[0].priority, 0);
}

TEST(Plan, OrdersByPositionThenByIndexNotByListOrder) {
  const Plan plan = make_plan({gradient("late", 1, 7), gradient("early", 1, 0),
                               gradient("twin1", 1, 3), gradient("twin2", 1, 3)},
                              {.bucket_bytes = 100, .slice_bytes = 100});
  EXPECT_THAT(plan.buckets, ElementsAre(ElementsAre(0, 3, 2, 1)));
}

TEST(Plan, FillsABucketToTheLastByteAndNotBeyond) {
  const std::vector<PlanInput> gradients = {gradient("a", 5, 0), gradient("b", 5, 1)};
  EXPECT_EQ(make_plan(gradients, {.bucket_bytes = 40, .slice_bytes = 40}).buckets.size(), 1u);
  EXPECT_EQ(make_plan(gradients, {.bucket_bytes = 39, .slice_bytes = 40}).buckets.size(), 2u);
}

TEST(Plan, GivesALargerGradientABucketOfItsOwn) {
  const Plan plan = make_plan(
      {gradient("a", 1, 0), gradient("big", 1000, 1), gradient("c", 1, 2), gradient("empty", 0, 1)},
      {.bucket_bytes = 400, .slice_bytes = 4000});
  // "empty" comes before "big" in backward order and fuses with "c".
  EXPECT_THAT(plan.buckets, ElementsAre(ElementsAre(2, 3), ElementsAre(1), ElementsAre(0)));
}

TEST(Plan, NeverFusesDifferentGroups) {
  const Plan plan = make_plan(
      {gradient("a", 1, 0, "fp32"), gradient("b", 1, 1, "fp16"), gradient("c", 1, 2, "fp32")},
      {.bucket_bytes = 400, .slice_bytes = 400});
  EXPECT_THAT(plan.buckets, ElementsAre(ElementsAre(2), ElementsAre(1), ElementsAre(0)));
}

TEST(Plan, CutsALargeGradientEvenlyWithoutACrumb) {
  constexpr std::size_t kCount = (10u << 20) / 4 + 1;  // 10 MiB and one element
  const Plan plan = make_plan({gradient("a", kCount, 0)}, {.slice_bytes = 1u << 20});
  ASSERT_EQ(plan.slices.size(), 11u);
  for (const Slice& slice : plan.slices) {
    EXPECT_NEAR(static_cast<double>(slice.bytes), 4.0 * kCount / 11, 4.0);
  }
}

TEST(Plan, KeepsAGradientOfExactlyOneSliceWhole) {
  EXPECT_EQ(make_plan({gradient("a", 250, 0)}, {.slice_bytes = 1000}).slices.size(), 1u);
  EXPECT_EQ(make_plan({gradient("a", 251, 0)}, {.slice_bytes = 1000}).slices.size(), 2u);
}

TEST(Plan, CutsInsideAGradientAtBlocksOnly) {
  const Plan plan = make_plan({gradient("a", 1000, 0, "q", 128)}, {.slice_bytes = 1000});
  // Even cuts would be at 250, 500 and 750 elements; the nearest multiples of 128 follow.
  ASSERT_EQ(plan.slices.size(), 4u);
  EXPECT_THAT(plan.slices[0].segments, ElementsAre(Segment{0, 0, 256}));
  EXPECT_THAT(plan.slices[1].segments, ElementsAre(Segment{0, 256, 256}));
  EXPECT_THAT(plan.slices[2].segments, ElementsAre(Segment{0, 512, 256}));
  EXPECT_THAT(plan.slices[3].segments, ElementsAre(Segment{0, 768, 232}));
}

TEST(Plan, AlignsBlocksToTheGradientAndNotToTheBucket) {
  // "b" comes first and shifts "a" by 3 elements inside the bucket.
  const Plan plan = make_plan({gradient("a", 1000, 0, "q", 100), gradient("b", 3, 1, "q", 100)},
                              {.slice_bytes = 2000});
  ASSERT_EQ(plan.slices.size(), 3u);
  EXPECT_THAT(plan.slices[0].segments, ElementsAre(Segment{1, 0, 3}, Segment{0, 0, 300}));
  EXPECT_THAT(plan.slices[1].segments, ElementsAre(Segment{0, 300, 400}));
  EXPECT_THAT(plan.slices[2].segments, ElementsAre(Segment{0, 700, 300}));
}

TEST(Plan, NeverCutsAGradientWithoutBlocks) {
  const Plan plan = make_plan({gradient("a", 1000, 0, "topk", 0)}, {.slice_bytes = 100});
  ASSERT_EQ(plan.slices.size(), 1u);
  EXPECT_THAT(plan.slices[0].segments, ElementsAre(Segment{0, 0, 1000}));
}

TEST(Plan, LetsACrumbRideWithItsWholeNeighbour) {
  const Plan plan =
      make_plan({gradient("bias", 1, 0, "topk", 0), gradient("weight", 1000, 1, "topk", 0)},
                {.slice_bytes = 1000});
  ASSERT_EQ(plan.slices.size(), 1u);
  EXPECT_EQ(plan.slices[0].priority, 0);
}

TEST(Plan, CutsAtTheEdgeOfAGradientWhenOneIsNear) {
  // The even cut is at 2020 bytes; 2000 is the end of "b".
  const Plan plan =
      make_plan({gradient("a", 510, 0), gradient("b", 500, 1)}, {.slice_bytes = 2020});
  ASSERT_EQ(plan.slices.size(), 2u);
  EXPECT_THAT(plan.slices[0].segments, ElementsAre(Segment{1, 0, 500}));
  EXPECT_THAT(plan.slices[1].segments, ElementsAre(Segment{0, 0, 510}));
  EXPECT_EQ(plan.slices[0].priority, 1);
  EXPECT_EQ(plan.slices[1].priority, 0);
}

TEST(Plan, PutsEmptyGradientsInOneSlice) {
  const Plan plan = make_plan({gradient("z0", 0, 0), gradient("a", 500, 1), gradient("z2", 0, 2)},
                              {.slice_bytes = 1000});
  ASSERT_EQ(plan.slices.size(), 2u);
  EXPECT_THAT(plan.slices[0].segments, ElementsAre(Segment{2, 0, 0}, Segment{1, 0, 250}));
  EXPECT_THAT(plan.slices[1].segments, ElementsAre(Segment{1, 250, 250}, Segment{0, 0, 0}));
}

TEST(Plan, MakesASliceOfNothingButEmptyGradients) {
  const Plan plan = make_plan({gradient("z", 0, 4)}, {});
  ASSERT_EQ(plan.slices.size(), 1u);
  EXPECT_EQ(plan.slices[0].bytes, 0u);
  EXPECT_EQ(plan.slices[0].priority, 4);
  EXPECT_THAT(plan.slices[0].segments, ElementsAre(Segment{0, 0, 0}));
}

TEST(Plan, OfNoGradientsIsEmpty) {
  const Plan plan = make_plan({}, {});
  EXPECT_TRUE(plan.buckets.empty());
  EXPECT_TRUE(plan.slices.empty());
  EXPECT_EQ(plan.hash, fnv1a64(""));
}

TEST(Plan, PlansSizesNearTheEndOfTheAddressSpace) {
  constexpr std::size_t kMost = std::numeric_limits<std::size_t>::max();
  const Plan plan = make_plan({gradient("a", kMost / 4, 0), gradient("b", kMost / 4, 1)},
                              {.bucket_bytes = kMost, .slice_bytes = kMost / 1000});
  ASSERT_EQ(plan.buckets.size(), 2u);
  std::size_t covered = 0;
  for (const Slice& slice : plan.slices) {
    EXPECT_LE(slice.bytes, kMost / 1000);
    if (slice.bucket == 0) covered += slice.bytes;
  }
  EXPECT_EQ(covered, kMost / 4 * 4);
}

TEST(Plan, AcceptsBlocksLargerThanAnything) {
  const std::size_t most = std::numeric_limits<std::size_t>::max();
  const Plan plan = make_plan({gradient("a", 1000, 0, "g", most)}, {.slice_bytes = 1000});
  EXPECT_EQ(plan.slices.size(), 1u);
}

TEST(Plan, RefusesBadInputAndNamesIt) {
  const std::size_t most = std::numeric_limits<std::size_t>::max();
  expect_invalid([] { make_plan({gradient("fc1", 1, 0), gradient("fc1", 2, 1)}, {}); }, "'fc1'");
  expect_invalid([] { make_plan({gradient("a", 1, 0), gradient("", 2, 1)}, {}); }, "number 1");
  expect_invalid([] { make_plan({gradient("a", 1, -1)}, {}); }, "position -1");
  expect_invalid([] { make_plan({{"a", 1, 0, 0, "g", 1}}, {}); }, "0 bytes");
  expect_invalid([&] { make_plan({gradient("a", most / 2, 0)}, {}); }, "'a'");
  expect_invalid([] { make_plan({}, {.bucket_bytes = 0}); }, "bucket_bytes");
  expect_invalid([] { make_plan({}, {.slice_bytes = 0}); }, "slice_bytes");
  expect_invalid([&] { make_plan({gradient("a", most / 4, 0)}, {}); }, "raise slice_bytes");
}

TEST(PlanDescription, IsCanonicalText) {
  const std::vector<PlanInput> gradients = {gradient("fc 1", 500, 0, "fp32 topk", 2),
                                            gradient("x\ny\\", 0, 1, "fp32 topk", 0)};
  const Plan plan = make_plan(gradients, {.slice_bytes = 1000});
  EXPECT_EQ(
      describe(gradients, plan),
      "gradient fc\\x201 count=500 element_bytes=4 position=0 block_count=2 group=fp32 topk\n"
      "gradient x\\x0ay\\x5c count=0 element_bytes=4 position=1 block_count=0 group=fp32 topk\n"
      "bucket 0 gradients=1,0\n"
      "slice 0 bucket=0 priority=0 bytes=1000 segments=1[0+0],0[0+250]\n"
      "slice 1 bucket=0 priority=0 bytes=1000 segments=0[250+250]\n");
  EXPECT_EQ(plan.hash, fnv1a64(describe(gradients, plan)));
}

TEST(PlanDescription, HashIsTheSameOnEveryMachine) {
  // Published values of FNV-1a/64; the last one holds whether char is signed or not.
  EXPECT_EQ(fnv1a64(""), 0xcbf29ce484222325u);
  EXPECT_EQ(fnv1a64("a"), 0xaf63dc4c8601ec8cu);
  EXPECT_EQ(fnv1a64("foobar"), 0x85944171f73967e8u);
  EXPECT_EQ(fnv1a64("\xff"), (0xcbf29ce484222325u ^ 0xffu) * 0x100000001b3u);
}

TEST(PlanDescription, NamesTheFirstDifferenceOfBothSides) {
  std::vector<PlanInput> gradients = {gradient("a", 1, 0), gradient("fc1.weight", 400000, 1)};
  const std::string mine = describe(gradients, make_plan(gradients, {}));
  gradients[1].count = 400001;
  const std::string theirs = describe(gradients, make_plan(gradients, {}));
  EXPECT_EQ(first_difference(mine, theirs),
            "mine: gradient fc1.weight count=400000 element_bytes=4 position=1 block_count=1 "
            "group=fp32 | theirs: gradient fc1.weight count=400001 element_bytes=4 position=1 "
            "block_count=1 group=fp32");
  EXPECT_EQ(first_difference(mine, mine), "");
}

TEST(PlanDescription, SaysWhenOneSideHasMore) {
  EXPECT_EQ(first_difference("one\n", "one\ntwo\n"), "mine: (nothing more) | theirs: two");
  EXPECT_EQ(first_difference("one\ntwo\n", "one\n"), "mine: two | theirs: (nothing more)");
  EXPECT_EQ(first_difference("", "one\n"), "mine: (nothing more) | theirs: one");
  EXPECT_EQ(first_difference("one\n\n", "one\n"), "mine:  | theirs: (nothing more)");
  EXPECT_NE(first_difference("one\n", "one"), "");
}

}  // namespace
}  // namespace tersum::scheduler
