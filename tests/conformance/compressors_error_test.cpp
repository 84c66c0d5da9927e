// What every registered compressor claims about its error, and what feedback makes of it.
#include <gtest/gtest.h>

#include <cmath>

#include "conformance/compressors_support.hpp"

namespace tersum::test {
namespace {

class CompressorError : public testing::TestWithParam<std::string> {
 protected:
  std::shared_ptr<const Compressor> compressor_ = make_compressor(GetParam());
  const CompressorTraits& traits_ = compressor_->traits();
};

// Deterministic methods in every single case, randomised ones on average over many steps.
TEST_P(CompressorError, ContractiveMethodsLoseLessThanTheInput) {
  if (traits_.bias != Bias::Contractive) GTEST_SKIP() << "claims something else";
  const std::size_t count = 1000;
  std::vector<Floats> inputs = {gaussian(count, 1), Floats(count, 0.7f), gaussian(count, 2, 1e-3f)};
  Floats one_hot(count, 0.0f);
  one_hot[321] = -4.0f;
  inputs.push_back(one_hot);
  Floats decaying(count);
  for (std::size_t i = 0; i < count; ++i) decaying[i] = 1.0f / static_cast<float>(i + 1);
  inputs.push_back(decaying);
  const std::size_t steps = traits_.randomised ? 2000 : 1;
  for (const Floats& x : inputs) {
    double lost = 0;
    for (std::size_t step = 0; step < steps; ++step) {
      lost += squared_distance(round_trip(*compressor_, x, {.step = step}), x);
    }
    EXPECT_LT(lost / static_cast<double>(steps), squared_norm(x));
  }
}

// Per coordinate: the mean of T draws within z = 5.5 of its own deviation (1000 coordinates), plus
// what 16-bit draws can be off.
TEST_P(CompressorError, UnbiasedMethodsAreRightOnAverage) {
  if (traits_.bias != Bias::Unbiased) GTEST_SKIP() << "claims something else";
  const std::size_t count = 1000;
  const Floats x = gaussian(count, 3);
  const std::size_t trials = traits_.randomised ? 3000 : 1;
  std::vector<double> sum(count);
  std::vector<double> squares(count);
  for (std::size_t trial = 0; trial < trials; ++trial) {
    const Floats decoded = round_trip(*compressor_, x, {.seed = 77, .step = trial, .rank = 2});
    for (std::size_t i = 0; i < count; ++i) {
      const double error = static_cast<double>(decoded[i]) - x[i];
      sum[i] += error;
      squares[i] += error * error;
    }
  }
  const double t = static_cast<double>(trials);
  for (std::size_t i = 0; i < count; ++i) {
    const double mean = sum[i] / t;
    // An event that never came up in T trials has probability below 9 / T or so.
    const double variance = squares[i] / t + (traits_.randomised ? 9.0 / t * 1e-3 : 0.0);
    EXPECT_LE(std::fabs(mean), 5.5 * std::sqrt(variance / t) + 1e-4) << i;
  }
}

TEST_P(CompressorError, FeedbackLosesNothing) {
  const std::size_t count = 2000;
  const auto state = compressor_->make_state(count);
  if (!state || GetParam().find("momentum") != std::string::npos) {
    GTEST_SKIP() << "has no residual, or adds momentum to it";
  }
  Floats given(count, 0.0f);
  Floats received(count, 0.0f);
  for (unsigned step = 0; step < 20; ++step) {
    const Floats gradient = gaussian(count, step);
    for (std::size_t i = 0; i < count; ++i) given[i] += gradient[i];
    const SliceContext context{.step = step};
    compressor_->decompress_add(encode(*compressor_, gradient, context, state.get()), context, 1.0f,
                                received);
    state->commit();
  }
  const Bytes saved = state->save();
  Floats residual(count);
  std::memcpy(residual.data(), saved.data() + 16, count * sizeof(float));
  for (std::size_t i = 0; i < count; ++i) {
    // Rounding: 60 additions of numbers that are mostly below 64 or so.
    EXPECT_NEAR(received[i] + residual[i], given[i],
                1e-4f + 1e-5f * (std::fabs(received[i]) + std::fabs(residual[i])));
  }
}

TEST_P(CompressorError, StateResumesFromItsBytes) {
  const std::size_t count = 1500;
  const auto state = compressor_->make_state(count);
  if (!state) GTEST_SKIP() << "has no state";
  for (unsigned step = 0; step < 3; ++step) {
    encode(*compressor_, gaussian(count, step), {.step = step}, state.get());
    state->commit();
  }
  const auto resumed = compressor_->make_state(count);
  encode(*compressor_, gaussian(count, 50), {}, resumed.get());  // must be forgotten
  resumed->load(state->save());
  EXPECT_EQ(resumed->save(), state->save());
  for (unsigned step = 3; step < 6; ++step) {
    const Floats gradient = gaussian(count, step);
    EXPECT_EQ(encode(*compressor_, gradient, {.step = step}, resumed.get()),
              encode(*compressor_, gradient, {.step = step}, state.get()));
    resumed->commit();
    state->commit();
  }
}

TEST_P(CompressorError, RollbackForgetsTheStep) {
  const std::size_t count = 1500;
  const auto state = compressor_->make_state(count);
  if (!state) GTEST_SKIP() << "has no state";
  encode(*compressor_, gaussian(count, 1), {}, state.get());
  state->commit();
  const Bytes before = state->save();
  const Bytes payload = encode(*compressor_, gaussian(count, 2), {.step = 1}, state.get());
  state->rollback();
  EXPECT_EQ(state->save(), before);
  EXPECT_EQ(encode(*compressor_, gaussian(count, 2), {.step = 1}, state.get()), payload);
}

TEST_P(CompressorError, StateOfAnEmptyGradientWorks) {
  const auto state = compressor_->make_state(0);
  encode(*compressor_, Floats(), {}, state.get());
  if (!state) return;
  state->commit();
  state->load(state->save());
}

// The owner of a shard must be able to decode and encode what the ranks send.
TEST_P(CompressorError, ReducerSpeaksTheSameFormat) {
  const auto reducer = compressor_->reducer();
  if (!reducer) return;
  EXPECT_EQ(reducer->traits().wire_id, traits_.wire_id);
  EXPECT_EQ(reducer->traits().block_count, traits_.block_count);
  EXPECT_EQ(reducer->max_payload_bytes(1234), compressor_->max_payload_bytes(1234));
  const Floats x = gaussian(1234, 1);
  const SliceContext context{.rank = kReducerRank};
  const Bytes payload = encode(*reducer, x, context);
  EXPECT_EQ(bits(decode(*compressor_, payload, 1234, context)),
            bits(decode(*reducer, payload, 1234, context)));
}

INSTANTIATE_TEST_SUITE_P(AllCompressors, CompressorError, testing::ValuesIn(all_specs()),
                         [](const auto& spec) { return test_name(spec.param); });

}  // namespace
}  // namespace tersum::test
