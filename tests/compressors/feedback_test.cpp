#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <thread>

#include "conformance/compressors_support.hpp"

namespace tersum::test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Array `index` of a saved state: 16 bytes of shape, then the arrays.
Floats saved_array(const CompressorState& state, std::size_t index, std::size_t count) {
  const Bytes saved = state.save();
  Floats array(count);
  std::memcpy(array.data(), saved.data() + 16 + index * count * sizeof(float),
              count * sizeof(float));
  return array;
}
Floats residual(const CompressorState& state, std::size_t count) {
  return saved_array(state, 0, count);
}
Floats velocity(const CompressorState& state, std::size_t count) {
  return saved_array(state, 1, count);
}

TEST(ErrorFeedback, ByHand) {
  const auto topk = make_compressor("topk:k=1+ef");
  const auto state = topk->make_state(3);
  // Sends 3; keeps (1, 2, 0). Then 1 + 1, 2 + 2, 3: sends 4; keeps (2, 0, 3).
  EXPECT_EQ(decode(*topk, encode(*topk, Floats{1, 2, 3}, {}, state.get()), 3), (Floats{0, 0, 3}));
  state->commit();
  EXPECT_EQ(residual(*state, 3), (Floats{1, 2, 0}));
  EXPECT_EQ(decode(*topk, encode(*topk, Floats{1, 2, 3}, {}, state.get()), 3), (Floats{0, 4, 0}));
  state->commit();
  EXPECT_EQ(residual(*state, 3), (Floats{2, 0, 3}));
}

// residual_out is exactly fl(fl(gradient + residual_in) - decoded), element by element.
TEST(ErrorFeedback, ResidualIsSentMinusDecodedToTheBit) {
  const std::size_t count = 3001;
  for (const std::string& spec : all_specs()) {
    if (spec.size() < 3 || !spec.ends_with("+ef")) continue;
    const auto compressor = make_compressor(spec);
    const auto state = compressor->make_state(count);
    for (unsigned step = 0; step < 4; ++step) {
      const Floats before = residual(*state, count);
      const Floats gradient = gaussian(count, step);
      const SliceContext context{.step = step};
      const Bytes payload = encode(*compressor, gradient, context, state.get());
      const Floats decoded = decode(*compressor, payload, count, context);
      state->commit();
      const Floats after = residual(*state, count);
      for (std::size_t i = 0; i < count; ++i) {
        const float sent = gradient[i] + before[i];
        ASSERT_EQ(after[i], sent - decoded[i]) << spec << " step " << step << " element " << i;
      }
    }
  }
}

TEST(ErrorFeedback, RollbackForgetsTheStep) {
  const auto topk = make_compressor("topk:k=1+ef+momentum=0.5");
  const auto state = topk->make_state(3);
  encode(*topk, Floats{1, 2, 3}, {}, state.get());
  state->commit();
  const Bytes before = state->save();
  const Bytes payload = encode(*topk, Floats{5, 6, 7}, {}, state.get());
  EXPECT_EQ(state->save(), before) << "a step is provisional until commit()";
  state->rollback();
  EXPECT_EQ(state->save(), before);
  state->commit();
  EXPECT_EQ(state->save(), before) << "what was rolled back came back";
  EXPECT_EQ(encode(*topk, Floats{5, 6, 7}, {}, state.get()), payload);
}

TEST(ErrorFeedback, PartsThatAStepDoesNotCompressKeepTheirResidual) {
  const auto qint = make_compressor("qint:bits=2,block=32+ef");
  const auto state = qint->make_state(96);
  const Floats gradient = gaussian(96, 1);
  const auto part = [&](std::size_t offset, std::size_t count) {
    encode(*qint, std::span(gradient).subspan(offset, count), {.offset = offset}, state.get());
  };
  part(0, 96);
  state->commit();
  const Floats first = residual(*state, 96);
  part(32, 32);  // only the middle
  state->commit();
  const Floats second = residual(*state, 96);
  for (std::size_t i = 0; i < 96; ++i) {
    if (i / 32 != 1) {
      ASSERT_EQ(second[i], first[i]) << i;
    }
  }
  EXPECT_NE(Floats(second.begin() + 32, second.begin() + 64),
            Floats(first.begin() + 32, first.begin() + 64));
  part(64, 32);  // out of order, and the first part missing: no swap may happen
  part(32, 32);
  state->commit();
  const Floats third = residual(*state, 96);
  EXPECT_EQ(Floats(third.begin(), third.begin() + 32), Floats(first.begin(), first.begin() + 32));
  part(0, 96);  // everything: the next arrays become the current ones
  state->commit();
  const Floats fourth = residual(*state, 96);
  part(0, 32);  // and stale values of the other arrays must not come back
  state->commit();
  const Floats fifth = residual(*state, 96);
  for (std::size_t i = 32; i < 96; ++i) ASSERT_EQ(fifth[i], fourth[i]) << i;
}

TEST(ErrorFeedback, CompressingAPartAgainInAStepStartsFromTheCommittedResidual) {
  const auto sign = make_compressor("sign:block=32+ef");
  const auto state = sign->make_state(64);
  const Floats gradient = gaussian(64, 3);
  const Bytes once = encode(*sign, gradient, {}, state.get());
  EXPECT_EQ(encode(*sign, gradient, {}, state.get()), once);
}

TEST(ErrorFeedback, DisjointPartsMayBeCompressedByThreads) {
  const std::size_t count = 64 * 512;
  for (const char* spec : {"qint:bits=4+ef", "sign+ef+momentum=0.9", "fp16+ef"}) {
    const auto compressor = make_compressor(spec);
    const auto alone = compressor->make_state(count);
    const auto shared = compressor->make_state(count);
    for (unsigned step = 0; step < 3; ++step) {
      const Floats gradient = gaussian(count, step);
      encode(*compressor, gradient, {}, alone.get());
      const auto half = [&](std::size_t parity) {
        for (std::size_t part = parity; part < 64; part += 2) {
          encode(*compressor, std::span(gradient).subspan(part * 512, 512), {.offset = part * 512},
                 shared.get());
        }
      };
      std::thread other(half, 1);
      half(0);
      other.join();
      alone->commit();
      shared->commit();
    }
    EXPECT_EQ(shared->save(), alone->save()) << spec;
  }
}

TEST(ErrorFeedback, NonFiniteElementsNeverEnterAResidual) {
  for (const std::string& spec : all_specs()) {
    const auto compressor = make_compressor(spec);
    const auto state = compressor->make_state(600);
    if (!state) continue;
    Floats gradient = gaussian(600, 5);
    gradient[3] = kNan;
    gradient[100] = kInfinity;
    gradient[599] = -kInfinity;
    encode(*compressor, gradient, {}, state.get());
    state->commit();
    const Bytes saved = state->save();
    Floats values((saved.size() - 16) / sizeof(float));
    std::memcpy(values.data(), saved.data() + 16, values.size() * sizeof(float));
    for (const float value : values) ASSERT_TRUE(std::isfinite(value)) << spec;
    ASSERT_EQ(values[3], 0.0f) << spec;
    // And the next step is clean again.
    const Floats next =
        decode(*compressor, encode(*compressor, gaussian(600, 6), {.step = 1}, state.get()), 600,
               {.step = 1});
    for (const float value : next) ASSERT_TRUE(std::isfinite(value)) << spec;
  }
}

TEST(ErrorFeedback, NeedsItsOwnState) {
  const auto topk = make_compressor("topk:k=1+ef");
  const Floats x(10, 1.0f);
  Bytes payload(topk->max_payload_bytes(10));
  EXPECT_THROW(topk->compress(x, {}, nullptr, payload), Error);
  const auto small = topk->make_state(9);
  EXPECT_THROW(topk->compress(x, {}, small.get(), payload), Error);
  const auto state = topk->make_state(12);
  EXPECT_THROW(topk->compress(x, {.offset = 3}, state.get(), payload), Error);
  EXPECT_THROW(topk->compress(x, {.offset = ~std::uint64_t{0}}, state.get(), payload), Error);
  EXPECT_NO_THROW(topk->compress(x, {.offset = 2}, state.get(), payload));
}

TEST(ErrorFeedback, LoadRefusesForeignBytes) {
  const auto state = make_compressor("topk+ef")->make_state(8);
  const auto other_count = make_compressor("topk+ef")->make_state(9);
  const auto other_arrays = make_compressor("topk+ef+momentum=0.9")->make_state(8);
  Bytes poisoned = state->save();
  const float nan = kNan;
  std::memcpy(poisoned.data() + 20, &nan, sizeof nan);
  Bytes longer = state->save();
  longer.push_back(std::byte{0});
  const Bytes before = state->save();
  for (const Bytes& bad : {Bytes(), other_count->save(), other_arrays->save(), poisoned, longer,
                           Bytes(before.begin(), before.end() - 1)}) {
    try {
      state->load(bad);
      FAIL() << bad.size();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::InvalidArgument);
    }
  }
  EXPECT_EQ(state->save(), before);
}

TEST(ErrorFeedback, RefusesNone) {
  try {
    make_compressor("none+ef");
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(error.status().message().find("loses nothing"), std::string::npos);
  }
}

TEST(ErrorFeedback, ReducerFeedsBackOnlyWhatIsBiased) {
  const auto reducer = [](const char* spec) {
    const auto compressor = make_compressor(spec);
    const auto own = compressor->reducer();
    return own ? own->spec() : compressor->spec();
  };
  EXPECT_EQ(reducer("sign:block=64"), "sign:block=64");
  EXPECT_EQ(reducer("sign:block=64+ef"), "sign:block=64+ef");
  EXPECT_EQ(reducer("sign:block=64+ef+momentum=0.9"), "sign:block=64+ef");
  EXPECT_EQ(reducer("qint:bits=8,block=64,rounding=stochastic+ef"),
            "qint:bits=8,block=64,rounding=stochastic");
  EXPECT_EQ(reducer("qint:bits=8,block=64,rounding=stochastic+ef+momentum=0.5"),
            "qint:bits=8,block=64,rounding=stochastic");
  EXPECT_EQ(make_compressor("sign")->reducer(), nullptr);
}

TEST(MomentumCorrection, ByHand) {
  const auto topk = make_compressor("topk:k=1+ef+momentum=0.5");
  const auto state = topk->make_state(2);
  // u = (4, 1), v = (4, 1): sends 4; the sent position is cleared in both.
  EXPECT_EQ(decode(*topk, encode(*topk, Floats{4, 1}, {}, state.get()), 2), (Floats{4, 0}));
  state->commit();
  EXPECT_EQ(residual(*state, 2), (Floats{0, 1}));
  EXPECT_EQ(velocity(*state, 2), (Floats{0, 1}));
  // u = (1, 0.5 + 2), v = (1, 1 + 2.5): sends 3.5.
  EXPECT_EQ(decode(*topk, encode(*topk, Floats{1, 2}, {}, state.get()), 2), (Floats{0, 3.5f}));
  state->commit();
  EXPECT_EQ(residual(*state, 2), (Floats{1, 0}));
  EXPECT_EQ(velocity(*state, 2), (Floats{1, 0}));
}

TEST(MomentumCorrection, DenseMethodsKeepTheirVelocity) {
  const auto cast = make_compressor("bf16+ef+momentum=0.5");
  const auto state = cast->make_state(1);
  for (const float expected : {1.0f, 1.5f, 1.75f}) {
    EXPECT_EQ(decode(*cast, encode(*cast, Floats{1}, {}, state.get()), 1), (Floats{expected}));
    state->commit();
    EXPECT_EQ(velocity(*state, 1), (Floats{expected}));
  }
}

}  // namespace
}  // namespace tersum::test
