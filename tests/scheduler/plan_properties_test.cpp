// What holds for every plan, checked on random inputs and on layer lists of real models.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "models.hpp"
#include "scheduler/plan.hpp"

namespace tersum::scheduler {
namespace {

using testing::gpt2;
using testing::resnet50;
using Inputs = std::vector<PlanInput>;

std::size_t bytes_of(const PlanInput& gradient) {
  return gradient.count * gradient.element_bytes;
}

/// Buckets are runs of the backward order, of one group, as full as they may be.
void check_buckets(const Inputs& gradients, const Plan& plan, std::size_t bucket_bytes) {
  std::vector<std::size_t> order;
  for (std::size_t b = 0; b < plan.buckets.size(); ++b) {
    const auto& bucket = plan.buckets[b];
    ASSERT_FALSE(bucket.empty());
    std::size_t bytes = 0;
    for (const std::size_t g : bucket) {
      EXPECT_EQ(gradients[g].group, gradients[bucket[0]].group);
      bytes += bytes_of(gradients[g]);
    }
    EXPECT_TRUE(bytes <= bucket_bytes || bucket.size() == 1);
    if (b > 0 && gradients[order.back()].group == gradients[bucket[0]].group) {
      // The first gradient of this bucket did not fit into the one before.
      std::size_t together = bytes_of(gradients[bucket[0]]);
      for (const std::size_t g : plan.buckets[b - 1]) together += bytes_of(gradients[g]);
      EXPECT_GT(together, bucket_bytes);
    }
    order.insert(order.end(), bucket.begin(), bucket.end());
  }
  ASSERT_EQ(order.size(), gradients.size());
  for (std::size_t i = 1; i < order.size(); ++i) {
    const PlanInput& earlier = gradients[order[i - 1]];
    const PlanInput& later = gradients[order[i]];
    EXPECT_TRUE(earlier.position > later.position ||
                (earlier.position == later.position && order[i - 1] > order[i]));
  }
}

/// Slices, read in order, hold every gradient of every bucket once and without gaps.
void check_coverage(const Inputs& gradients, const Plan& plan) {
  std::vector<std::size_t> covered(gradients.size(), 0);
  std::vector<int> segments(gradients.size(), 0);
  std::vector<std::vector<std::size_t>> order(plan.buckets.size());
  int bucket = 0;
  for (const Slice& slice : plan.slices) {
    EXPECT_GE(slice.bucket, bucket);
    bucket = slice.bucket;
    ASSERT_FALSE(slice.segments.empty());
    std::size_t bytes = 0;
    int priority = std::numeric_limits<int>::max();
    for (const Segment& segment : slice.segments) {
      const PlanInput& gradient = gradients[segment.gradient];
      EXPECT_EQ(segment.offset, covered[segment.gradient]);
      EXPECT_TRUE(segment.count > 0 || gradient.count == 0);
      if (segment.offset > 0) {
        ASSERT_GT(gradient.block_count, 0u) << "a gradient that is never cut was cut";
        EXPECT_EQ(segment.offset % gradient.block_count, 0u);
      }
      covered[segment.gradient] += segment.count;
      if (segments[segment.gradient]++ == 0) {
        order[static_cast<std::size_t>(slice.bucket)].push_back(segment.gradient);
      }
      bytes += segment.count * gradient.element_bytes;
      priority = std::min(priority, gradient.position);
    }
    EXPECT_EQ(slice.bytes, bytes);
    EXPECT_EQ(slice.priority, priority);
  }
  EXPECT_EQ(order, plan.buckets);
  for (std::size_t g = 0; g < gradients.size(); ++g) {
    EXPECT_EQ(covered[g], gradients[g].count);
    EXPECT_TRUE(segments[g] == 1 || (segments[g] > 1 && gradients[g].count > 1));
  }
}

/// No slice is far from the even division of its bucket, except where blocks force it.
void check_sizes(const Inputs& gradients, const Plan& plan, std::size_t slice_bytes) {
  for (std::size_t b = 0; b < plan.buckets.size(); ++b) {
    std::size_t total = 0;
    std::size_t block = 0;
    for (const std::size_t g : plan.buckets[b]) {
      const PlanInput& gradient = gradients[g];
      const bool whole = gradient.block_count == 0 || gradient.block_count > gradient.count;
      total += bytes_of(gradient);
      block = std::max(block,
                       whole ? bytes_of(gradient) : gradient.block_count * gradient.element_bytes);
    }
    const std::size_t parts = std::max<std::size_t>((total + slice_bytes - 1) / slice_bytes, 1);
    std::size_t slices = 0;
    for (const Slice& slice : plan.slices) {
      if (slice.bucket != static_cast<int>(b)) continue;
      ++slices;
      EXPECT_LE(slice.bytes, slice_bytes + slice_bytes / 4 + 2 * block);
      EXPECT_GE(slice.bytes, total / parts / 4) << "a crumb";
      if (block * 8 <= total / parts) {
        EXPECT_GE(slice.bytes, total / parts / 2);
      }
    }
    EXPECT_LE(slices, parts);
    EXPECT_GE(slices, 1u);
    if (block * 2 <= total / parts) {
      EXPECT_EQ(slices, parts);
    }
  }
}

void check(const Inputs& gradients, const PlanOptions& options) {
  const Plan plan = make_plan(gradients, options);
  check_buckets(gradients, plan, options.bucket_bytes);
  check_coverage(gradients, plan);
  check_sizes(gradients, plan, options.slice_bytes);
}

Inputs random_inputs(std::mt19937_64& random) {
  const auto pick = [&](std::size_t low, std::size_t high) {
    return std::uniform_int_distribution<std::size_t>(low, high)(random);
  };
  Inputs gradients(pick(1, 40));
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    PlanInput& gradient = gradients[i];
    gradient.key = "g" + std::to_string(i);
    const std::size_t scale[] = {0, 1, 10, 500, 20000};
    gradient.count = pick(0, scale[pick(0, 4)]);
    gradient.element_bytes = std::size_t{1} << pick(0, 3);
    gradient.position = static_cast<int>(pick(0, 50));
    gradient.group = pick(0, 4) == 0 ? "other" : "usual";
    const std::size_t blocks[] = {0, 1, 1, 7, 128, 100000};
    gradient.block_count = blocks[pick(0, 5)];
  }
  return gradients;
}

TEST(PlanProperties, HoldForRandomInputs) {
  std::mt19937_64 random(1);
  for (int trial = 0; trial < 3000 && !::testing::Test::HasFailure(); ++trial) {
    SCOPED_TRACE("trial " + std::to_string(trial));
    const Inputs gradients = random_inputs(random);
    std::uniform_int_distribution<std::size_t> bytes(1, 60000);
    check(gradients, {.bucket_bytes = bytes(random), .slice_bytes = 1 + bytes(random) / 4});
  }
}

TEST(PlanProperties, HoldForRealModels) {
  ASSERT_EQ(resnet50().size(), 161u);
  ASSERT_EQ(gpt2().size(), 148u);
  for (const Inputs& model : {resnet50(), gpt2()}) {
    for (const std::size_t block : {0, 1, 128}) {
      Inputs gradients = model;
      for (PlanInput& gradient : gradients) gradient.block_count = block;
      check(gradients, {});
      check(gradients, {.bucket_bytes = 1u << 20, .slice_bytes = 4u << 20});
      check(gradients, {.bucket_bytes = 512u << 20, .slice_bytes = 100'000});
    }
  }
}

TEST(PlanProperties, RealModelsHaveTheirKnownSizes) {
  const auto elements = [](const Inputs& model) {
    std::size_t sum = 0;
    for (const PlanInput& gradient : model) sum += gradient.count;
    return sum;
  };
  EXPECT_EQ(elements(resnet50()), 25'557'032u);
  EXPECT_EQ(elements(gpt2()), 124'439'808u);
  EXPECT_EQ(make_plan(resnet50(), {}).buckets.size(), 5u);
  // The embedding alone fills 148 of the slices and is the most urgent.
  const Plan plan = make_plan(gpt2(), {});
  EXPECT_EQ(std::count_if(plan.slices.begin(), plan.slices.end(),
                          [](const Slice& slice) { return slice.priority == 0; }),
            148);
}

TEST(PlanProperties, EqualInputsGiveEqualPlans) {
  std::mt19937_64 random(2);
  for (int trial = 0; trial < 200; ++trial) {
    const Inputs gradients = random_inputs(random);
    const PlanOptions options{.bucket_bytes = 20000, .slice_bytes = 3000};
    const Plan one = make_plan(gradients, options);
    const Plan two = make_plan(Inputs(gradients), options);
    EXPECT_EQ(one.hash, two.hash);
    EXPECT_EQ(describe(gradients, one), describe(gradients, two));
  }
}

TEST(PlanProperties, EveryFieldChangesTheHash) {
  std::mt19937_64 random(3);
  const std::vector<std::function<void(PlanInput&)>> changes = {
      [](PlanInput& g) { g.key += "'"; },     [](PlanInput& g) { g.count += 1; },
      [](PlanInput& g) { g.position += 1; },  [](PlanInput& g) { g.element_bytes += 1; },
      [](PlanInput& g) { g.group += "'"; },   [](PlanInput& g) { g.block_count += 1; },
      [](PlanInput& g) { g.key += "\n"; },    [](PlanInput& g) { g.group += "\n"; },
      [](PlanInput& g) { g.key += " count"; }};
  for (int trial = 0; trial < 100; ++trial) {
    const Inputs gradients = random_inputs(random);
    const Plan plan = make_plan(gradients, {});
    const std::string mine = describe(gradients, plan);
    std::set<std::uint64_t> hashes = {plan.hash};
    for (const auto& change : changes) {
      Inputs changed = gradients;
      change(changed[std::uniform_int_distribution<std::size_t>(0, changed.size() - 1)(random)]);
      const Plan other = make_plan(changed, {});
      hashes.insert(other.hash);
      EXPECT_NE(first_difference(mine, describe(changed, other)), "");
    }
    EXPECT_EQ(hashes.size(), changes.size() + 1);
  }
}

TEST(PlanProperties, OrderAndOptionsChangeTheHash) {
  Inputs model = resnet50();
  const std::uint64_t hash = make_plan(model, {}).hash;
  EXPECT_NE(make_plan(model, {.bucket_bytes = 10u << 20}).hash, hash);
  EXPECT_NE(make_plan(model, {.slice_bytes = 2u << 20}).hash, hash);
  std::swap(model[3], model[4]);
  EXPECT_NE(make_plan(model, {}).hash, hash);
}

TEST(PlanProperties, ThePlansOfRealModelsNeverChangeSilently) {
  // Ranks of different builds compare these; a new value here is a new protocol version.
  EXPECT_EQ(make_plan(resnet50(), {}).hash, 1501377496091071359u);
  EXPECT_EQ(make_plan(gpt2(), {}).hash, 11823477533600813589u);
}

}  // namespace
}  // namespace tersum::scheduler
