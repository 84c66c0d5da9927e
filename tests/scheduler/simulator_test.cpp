#include "scheduler/simulator.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "models.hpp"
#include "tersum/error.hpp"

namespace tersum::scheduler {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using Layers = std::vector<LayerCost>;

constexpr std::size_t kMegabyte = 1'000'000;  // 1 ms on a link of 1 ns per byte

LayerCost layer(int forward_ms, int backward_ms, std::size_t megabytes) {
  return {milliseconds(forward_ms), milliseconds(backward_ms), megabytes * kMegabyte};
}

/// A bucket for each layer, slices of at most `slice`, on a link of 1 ns per byte.
SimulationOptions per_layer(Gating gating, Policy policy, std::size_t slice, std::size_t credit) {
  SimulationOptions options;
  options.link = {Time{0}, 1.0};
  options.gating = gating;
  options.plan = {.bucket_bytes = 1, .slice_bytes = slice};
  options.scheduler.policy = policy;
  options.scheduler.credit_bytes = credit;
  options.scheduler.overtakes = std::numeric_limits<std::size_t>::max();
  return options;
}

// Two layers: gradient 1 (30 ms on the wire) is made at 20 ms, gradient 0 (5 ms) at 40 ms.
const Layers kTwoLayers = {layer(10, 20, 5), layer(10, 20, 30)};

TEST(Simulator, WholeGradientsInBackwardOrderWithABarrier) {
  // Wire: gradient 1 20..50, gradient 0 50..55. Forward 55..75.
  const Prediction prediction =
      simulate(kTwoLayers, per_layer(Gating::Iteration, Policy::Fifo, 100 * kMegabyte, 1));
  EXPECT_EQ(prediction.iteration, milliseconds(75));
  EXPECT_EQ(prediction.compute, milliseconds(60));
  EXPECT_EQ(prediction.exposed, milliseconds(15));
  EXPECT_EQ(prediction.communication, milliseconds(35));
  EXPECT_EQ(prediction.slices, 2u);
}

TEST(Simulator, FifoLeavesNothingForTheCrossBarrierToHide) {
  const Prediction prediction =
      simulate(kTwoLayers, per_layer(Gating::Layer, Policy::Fifo, 100 * kMegabyte, 1));
  EXPECT_EQ(prediction.iteration, milliseconds(75));
}

TEST(Simulator, PriorityLetsTheFirstLayerOvertakeAtTheNextSlice) {
  // Wire: four slices of gradient 1 20..40, gradient 0 40..45, two slices 45..55.
  // Forward: layer 0 45..55, layer 1 55..65, which is the lower bound.
  const Prediction prediction =
      simulate(kTwoLayers, per_layer(Gating::Layer, Policy::Priority, 5 * kMegabyte, 1));
  EXPECT_EQ(prediction.iteration, milliseconds(65));
  EXPECT_EQ(prediction.slices, 7u);
  EXPECT_EQ(lower_bound(kTwoLayers, {Time{0}, 1.0}), milliseconds(65));
}

TEST(Simulator, MoreCreditMeansLaterPreemption) {
  // At 40 ms a fifth slice of gradient 1 has been granted: it goes 40..45, gradient 0 45..50.
  const Prediction prediction = simulate(
      kTwoLayers, per_layer(Gating::Layer, Policy::Priority, 5 * kMegabyte, 10 * kMegabyte));
  EXPECT_EQ(prediction.iteration, milliseconds(70));
}

TEST(Simulator, TheStarvationBoundLimitsPreemption) {
  // Overtakes 0 is fifo.
  SimulationOptions options = per_layer(Gating::Layer, Policy::Priority, 5 * kMegabyte, 1);
  options.scheduler.overtakes = 0;
  EXPECT_EQ(simulate(kTwoLayers, options).iteration, milliseconds(75));
}

TEST(Simulator, EverySlicePaysAlpha) {
  SimulationOptions options = per_layer(Gating::Iteration, Policy::Fifo, 100 * kMegabyte, 1);
  options.link.alpha = milliseconds(1);
  // Wire: 20..51, 51..57.
  EXPECT_EQ(simulate(kTwoLayers, options).iteration, milliseconds(77));
  options.plan.slice_bytes = 5 * kMegabyte;
  EXPECT_EQ(simulate(kTwoLayers, options).communication, milliseconds(35 + 7));
}

TEST(Simulator, AFusedBucketWaitsForItsLastGradient) {
  SimulationOptions options = per_layer(Gating::Iteration, Policy::Fifo, 100 * kMegabyte, 1);
  options.plan.bucket_bytes = 100 * kMegabyte;
  // Wire: one slice of 35 MB 40..75.
  const Prediction prediction = simulate(kTwoLayers, options);
  EXPECT_EQ(prediction.slices, 1u);
  EXPECT_EQ(prediction.iteration, milliseconds(95));
}

TEST(Simulator, HidesTheExchangeBehindALongBackward) {
  const Layers layers = {layer(10, 50, 0), layer(10, 20, 30)};
  const Prediction prediction =
      simulate(layers, per_layer(Gating::Iteration, Policy::Fifo, 100 * kMegabyte, 1));
  EXPECT_EQ(prediction.iteration, prediction.compute);
  EXPECT_EQ(prediction.exposed, Time{0});
}

TEST(Simulator, LayersWithoutParametersWaitForNothing) {
  // Gradient 1 is on the wire 50..80; layer 0 starts at 60 under the cross-barrier.
  const Layers layers = {layer(30, 10, 0), layer(10, 50, 30)};
  EXPECT_EQ(
      simulate(layers, per_layer(Gating::Layer, Policy::Priority, 100 * kMegabyte, 1)).iteration,
      milliseconds(100));
  EXPECT_EQ(simulate(layers, per_layer(Gating::Iteration, Policy::Priority, 100 * kMegabyte, 1))
                .iteration,
            milliseconds(120));
}

TEST(Simulator, AModelWithoutParametersOnlyComputes) {
  const Prediction prediction =
      simulate({layer(3, 4, 0)}, per_layer(Gating::Layer, Policy::Priority, kMegabyte, 1));
  EXPECT_EQ(prediction.iteration, milliseconds(7));
  EXPECT_EQ(prediction.slices, 0u);
}

TEST(Simulator, LowerBoundTakesTheWorstSuffix) {
  // Compute 60; layer 0 alone 40+5+20; layers 0..1: 20+35+10.
  EXPECT_EQ(lower_bound(kTwoLayers, {Time{0}, 1.0}), milliseconds(65));
  EXPECT_EQ(lower_bound(kTwoLayers, {Time{0}, 0.0}), milliseconds(60));
  EXPECT_EQ(lower_bound(kTwoLayers, {milliseconds(9), 2.0}), milliseconds(100));  // 20 + 70 + 10
}

TEST(Simulator, RefusesWhatCannotBe) {
  const auto expect_invalid = [](const Layers& layers, const SimulationOptions& options) {
    try {
      simulate(layers, options);
      FAIL() << "expected an error";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::InvalidArgument);
    }
  };
  const SimulationOptions good = per_layer(Gating::Layer, Policy::Priority, kMegabyte, 1);
  expect_invalid({}, good);
  expect_invalid({layer(-1, 0, 1)}, good);
  expect_invalid({layer(0, -1, 1)}, good);
  for (const double beta : {-1.0, std::nan(""), std::numeric_limits<double>::infinity(), 1e300}) {
    SimulationOptions bad = good;
    bad.link.beta_ns_per_byte = beta;
    expect_invalid({layer(1, 1, 1)}, bad);
  }
  SimulationOptions bad = good;
  bad.link.alpha = milliseconds(-1);
  expect_invalid({layer(1, 1, 1)}, bad);
  bad.link.alpha = Time::max();
  expect_invalid({layer(1, 1, 1)}, bad);
  expect_invalid({{Time::max(), Time::max(), 1}}, good);
}

Layers random_layers(std::mt19937_64& random) {
  const auto pick = [&](std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random);
  };
  Layers layers(static_cast<std::size_t>(pick(1, 25)));
  for (LayerCost& cost : layers) {
    cost.forward = nanoseconds(pick(0, 5000));
    cost.backward = nanoseconds(pick(0, 10000));
    cost.bytes = pick(0, 5) == 0 ? 0 : static_cast<std::size_t>(pick(1, 20000));
  }
  layers[0].bytes = static_cast<std::size_t>(pick(1, 40000));
  return layers;
}

SimulationOptions random_options(std::mt19937_64& random) {
  const auto pick = [&](std::size_t low, std::size_t high) {
    return std::uniform_int_distribution<std::size_t>(low, high)(random);
  };
  SimulationOptions options;
  options.link.alpha = nanoseconds(pick(0, 1) * pick(0, 300));
  options.link.beta_ns_per_byte = static_cast<double>(pick(1, 3000)) / 1000;
  options.gating = pick(0, 1) == 0 ? Gating::Layer : Gating::Iteration;
  options.plan = {.bucket_bytes = pick(1, 50000), .slice_bytes = pick(300, 20000)};
  options.scheduler.policy = pick(0, 1) == 0 ? Policy::Priority : Policy::Fifo;
  options.scheduler.credit_bytes = pick(1, 40000);
  options.scheduler.overtakes = pick(0, 100);
  return options;
}

TEST(SimulatorProperties, NothingBeatsTheLowerBound) {
  std::mt19937_64 random(1);
  int near = 0;
  for (int trial = 0; trial < 2000; ++trial) {
    const Layers layers = random_layers(random);
    const SimulationOptions options = random_options(random);
    const Time bound = lower_bound(layers, options.link);
    const Time iteration = simulate(layers, options).iteration;
    ASSERT_GE(iteration, bound) << "trial " << trial;
    if (iteration <= bound + bound / 50) ++near;
  }
  EXPECT_GT(near, 40) << "the bound must be within 2 % for some";
}

TEST(SimulatorProperties, PriorityComesWithinOneSliceOfTheLowerBound) {
  // Without alpha, with a bucket for each layer and credit for one slice, this is Schrage's
  // list schedule, at most one job behind the preemptive optimum.
  std::mt19937_64 random(2);
  for (int trial = 0; trial < 500; ++trial) {
    const Layers layers = random_layers(random);
    SimulationOptions options = per_layer(Gating::Layer, Policy::Priority, 500, 1);
    const Prediction prediction = simulate(layers, options);
    const Time bound = lower_bound(layers, options.link);
    ASSERT_LE(prediction.iteration, bound + nanoseconds(500)) << "trial " << trial;
  }
}

TEST(SimulatorProperties, PriorityIsNeverSlowerThanFifoAndOftenFaster) {
  std::mt19937_64 random(3);
  int faster = 0;
  for (int trial = 0; trial < 2000; ++trial) {
    Layers layers = random_layers(random);
    layers[0].bytes *= 5;  // front-heavy, as with an embedding
    SimulationOptions options = random_options(random);
    options.gating = Gating::Layer;
    options.scheduler.policy = Policy::Fifo;
    const Time fifo = simulate(layers, options).iteration;
    options.scheduler.policy = Policy::Priority;
    const Time priority = simulate(layers, options).iteration;
    ASSERT_LE(priority, fifo) << "trial " << trial;
    if (priority < fifo) ++faster;
  }
  EXPECT_GT(faster, 100);
}

TEST(SimulatorProperties, WithABarrierTheOrderMakesNoDifference) {
  std::mt19937_64 random(4);
  for (int trial = 0; trial < 500; ++trial) {
    const Layers layers = random_layers(random);
    SimulationOptions options = random_options(random);
    options.gating = Gating::Iteration;
    options.scheduler.policy = Policy::Fifo;
    const Time fifo = simulate(layers, options).iteration;
    options.scheduler.policy = Policy::Priority;
    ASSERT_EQ(simulate(layers, options).iteration, fifo) << "trial " << trial;
  }
}

TEST(SimulatorProperties, RealModelsRunThrough) {
  // Compute time in proportion to the elements, 300 ms in all; 10 Gb/s.
  for (const auto& model : {testing::resnet50(), testing::gpt2()}) {
    Layers layers;
    double elements = 0;
    for (const PlanInput& gradient : model) elements += static_cast<double>(gradient.count);
    for (const PlanInput& gradient : model) {
      const double share = static_cast<double>(gradient.count) / elements;
      layers.push_back({nanoseconds(static_cast<std::int64_t>(share * 1e8)),
                        nanoseconds(static_cast<std::int64_t>(share * 2e8)), gradient.count * 4});
    }
    SimulationOptions options;
    options.link = {std::chrono::microseconds(50), 0.8};
    const Time bound = lower_bound(layers, options.link);
    const Prediction priority = simulate(layers, options);
    EXPECT_GE(priority.iteration, bound);
    EXPECT_EQ(priority.exposed, priority.iteration - priority.compute);
    options.gating = Gating::Iteration;
    EXPECT_GE(simulate(layers, options).iteration, priority.iteration);
  }
}

}  // namespace
}  // namespace tersum::scheduler
