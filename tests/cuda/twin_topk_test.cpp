// The selection of topk's twin where its guess from the last step helps, misses, or cannot help.
#include <gtest/gtest.h>

#include "cuda/error.hpp"
#include "cuda/twin_support.hpp"

namespace tersum::gpu::test {
namespace {

constexpr std::size_t kCount = 300'000;

class TopKTwin : public testing::Test {
 protected:
  void SetUp() override {
    if (!has_device()) GTEST_SKIP() << "no GPU";
  }

  /// Runs the inputs as steps on both sides.
  static void compare(const std::string& spec, const std::vector<Floats>& inputs) {
    Bench bench(spec, inputs[0].size());
    const auto state = bench.cpu().make_state(inputs[0].size());
    for (std::size_t step = 0; step < inputs.size(); ++step) {
      const Bytes expected = tersum::test::encode(bench.cpu(), inputs[step], {}, state.get());
      ASSERT_TRUE(bench.compress(inputs[step]) == expected) << spec << ", step " << step;
      bench.state()->commit(bench.stream());
      if (!state) continue;
      state->commit();
      ASSERT_TRUE(bench.state()->save(bench.stream()) == state->save()) << "step " << step;
    }
  }

  static Floats scaled(float factor, unsigned seed) {
    return tersum::test::gaussian(kCount, seed, factor);
  }
};

TEST_F(TopKTwin, StaysExactWhileTheGuessHolds) {
  std::vector<Floats> inputs;
  for (unsigned step = 0; step < 8; ++step) inputs.push_back(scaled(1.0f, step));
  for (const char* spec : {"topk", "topk+ef", "topk:ratio=0.001+ef+momentum=0.9"}) {
    compare(spec, inputs);
  }
}

TEST_F(TopKTwin, StaysExactWhenMagnitudesJump) {
  for (const char* spec : {"topk", "topk+ef", "topk+ef+momentum=0.5"}) {
    compare(spec, {scaled(1.0f, 1), scaled(1000.0f, 2), scaled(1e-3f, 3), scaled(1e-3f, 4),
                   scaled(1e-20f, 5), scaled(1e20f, 6)});
  }
}

/// Enough for a sample to be taken; and the places it looks at.
constexpr std::size_t kSampledCount = std::size_t{1} << 21;

template <class Act>
void for_each_sampled(const Act& act) {
  constexpr std::uint32_t kSample = 32768, kRoom = kSampledCount / kSample;
  for (std::uint32_t s = 0; s < kSample; ++s) act(s * kRoom + s * 2654435761u % kRoom);
}

TEST_F(TopKTwin, StaysExactWhereASampleReplacesTheGuess) {
  std::vector<Floats> inputs;
  for (const float factor : {1.0f, 1.0f, 50.0f, 0.02f, 0.02f})
    inputs.push_back(tersum::test::gaussian(kSampledCount, 7, factor));
  for (const char* spec :
       {"topk", "topk+ef", "topk:ratio=0.1+ef", "topk:ratio=0.3+ef+momentum=0.5"})
    compare(spec, inputs);
}

TEST_F(TopKTwin, StaysExactWhenTheSampleMisleads) {
  Floats too_large = tersum::test::gaussian(kSampledCount, 1);
  Floats too_small = too_large;
  Floats rare = too_large;
  const Floats plain = too_large;
  Floats as_before = tersum::test::gaussian(kSampledCount, 1, 1e-3f);  // but for what is looked at
  for_each_sampled([&](std::size_t i) {
    too_large[i] *= 1000;
    too_small[i] *= 1e-3f;
    rare[i] = 0;
    as_before[i] = plain[i];
  });
  for (const char* spec : {"topk", "topk+ef"})
    compare(spec, {too_large, too_small, rare, too_large, plain, plain, as_before, plain});
}

TEST_F(TopKTwin, KeepsTheLowestIndicesOfManyEqualMagnitudes) {
  for (const char* spec : {"topk", "topk+ef", "topk:ratio=0.2+ef"}) {
    for (const char* kind : {"constant", "zeros", "ties", "nan"}) {
      compare(spec, {make_input(kind, kCount, 1), make_input(kind, kCount, 2),
                     make_input("gaussian", kCount, 3), make_input(kind, kCount, 4)});
    }
  }
}

TEST_F(TopKTwin, FindsLargeElementsThatLieTogether) {
  std::vector<Floats> inputs;
  for (unsigned step = 0; step < 3; ++step) {
    inputs.push_back(scaled(1e-3f, step));
    for (std::size_t i = 0; i < 5000; ++i)
      inputs.back()[kCount - 1 - i] = 1.0f + 1e-6f * static_cast<float>(i);
  }
  compare("topk+ef", inputs);
  compare("topk:ratio=0.0001+ef", inputs);
}

TEST_F(TopKTwin, NeedsNoState) {
  Bench bench("topk", kCount);
  const Floats input = scaled(1.0f, 9);
  EXPECT_TRUE(bench.compress(input) == tersum::test::encode(bench.cpu(), input));
}

TEST_F(TopKTwin, SavesAndLoadsTheStateOfTheCpu) {
  Bench bench("topk+ef+momentum=0.9", kCount);
  const auto state = bench.cpu().make_state(kCount);
  tersum::test::encode(bench.cpu(), scaled(1.0f, 1), {}, state.get());
  state->commit();
  const auto saved = state->save();
  bench.state()->load(saved, bench.stream());
  EXPECT_TRUE(bench.state()->save(bench.stream()) == saved);
  EXPECT_TRUE(bench.compress(scaled(1.0f, 2)) ==
              tersum::test::encode(bench.cpu(), scaled(1.0f, 2), {}, state.get()));
  EXPECT_THROW(bench.state()->load(std::span(saved).first(saved.size() - 4), bench.stream()),
               Error);
}

}  // namespace
}  // namespace tersum::gpu::test
