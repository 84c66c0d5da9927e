// Twins against their CPU compressors: the same payloads, states and decoded values, bit for bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "cuda/error.hpp"
#include "cuda/twin_support.hpp"

namespace tersum::gpu::test {
namespace {

constexpr std::size_t kLarge = (std::size_t{1} << 20) + 3;

/// All specs of the conformance suite, with parameters that take other kernels added.
std::vector<std::string> twin_specs() {
  std::vector<std::string> specs = tersum::test::all_specs();
  for (const char* base : {"qint:bits=2,block=32",
                           "qint:bits=3,block=64",
                           "qint:bits=5,block=128",
                           "qint:bits=6,block=256",
                           "qint:bits=7,block=1024",
                           "qint:bits=8,block=96",
                           "qint:bits=4,block=2048",
                           "qint:bits=4,rounding=stochastic",
                           "qint:bits=8,block=1024,rounding=stochastic",
                           "qint:bits=3,block=160,rounding=stochastic",
                           "qint:bits=2,block=32,rounding=stochastic",
                           "sign:block=32",
                           "sign:block=64",
                           "sign:block=128",
                           "sign:block=256",
                           "sign:block=1024",
                           "sign:block=96",
                           "sign:block=4096",
                           "topk:ratio=0.001",
                           "topk:ratio=0.3",
                           "topk:ratio=1",
                           "topk:k=1",
                           "randomk:ratio=0.3"}) {
    for (const char* decorators : {"", "+ef", "+ef+momentum=0.9"}) {
      specs.push_back(std::string(base) + decorators);
    }
  }
  std::set<std::string> seen;
  std::erase_if(specs, [&](const std::string& spec) {
    return !seen.insert(make_compressor(spec)->spec()).second;
  });
  return specs;
}

class TwinBytes : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (!has_device()) GTEST_SKIP() << "no GPU";
  }

  static std::vector<std::size_t> counts(const Compressor& compressor) {
    const std::size_t block = std::max<std::size_t>(compressor.traits().block_count, 33);
    return {0, 1, 7, block - 1, block, block + 1, 3 * block + 5, 5000};
  }

  /// Three steps on inputs of one kind, both sides with a state of their own.
  static void compare_steps(Bench& bench, const std::string& kind, std::size_t count, int steps) {
    SCOPED_TRACE(kind + ", " + std::to_string(count) + " elements");
    bench.make_state(count);
    const auto state = bench.cpu().make_state(count);
    for (int step = 0; step < steps; ++step) {
      const Floats input = make_input(kind, count, static_cast<unsigned>(step));
      const SliceContext context{42, static_cast<std::uint64_t>(step), 0x1234567890abcdefull, 0, 3};
      const Bytes expected = tersum::test::encode(bench.cpu(), input, context, state.get());
      const Bytes found = bench.compress(input, context);
      ASSERT_EQ(found.size(), expected.size());
      const auto at = std::mismatch(found.begin(), found.end(), expected.begin()).first;
      ASSERT_TRUE(at == found.end()) << "step " << step << ": byte " << at - found.begin() << " of "
                                     << found.size() << " differs";
      if (state) state->commit();
      bench.state()->commit(bench.stream());
      if (state) {
        ASSERT_TRUE(bench.state()->save(bench.stream()) == state->save())
            << "step " << step << ": the states differ";
      }
    }
  }
};

TEST_P(TwinBytes, EncodesTheBytesOfTheCpuStepAfterStep) {
  Bench bench(GetParam(), kLarge);
  if (!bench.has_twin()) GTEST_SKIP() << "has no twin";
  for (const std::string& kind : input_kinds()) {
    for (const std::size_t count : counts(bench.cpu())) {
      compare_steps(bench, kind, count, 3);
      if (HasFatalFailure()) return;
    }
  }
  compare_steps(bench, "nonfinite", kLarge, 2);
}

TEST_P(TwinBytes, EncodesTheSameFromMemoryOfAnyAlignment) {
  for (const std::size_t misalign : {1u, 2u, 3u}) {
    Bench bench(GetParam(), 3000, misalign);
    if (!bench.has_twin()) GTEST_SKIP() << "has no twin";
    compare_steps(bench, "gaussian", 2999, 2);
  }
}

TEST_P(TwinBytes, DecodesWhatTheCpuEncoded) {
  Bench bench(GetParam(), kLarge, 1);
  if (!bench.has_twin()) GTEST_SKIP() << "has no twin";
  const Compressor& cpu = bench.cpu();
  std::vector<std::size_t> all = counts(cpu);
  all.push_back(kLarge);
  for (const char* kind : {"gaussian", "nonfinite", "denormals"}) {
    for (const std::size_t count : all) {
      SCOPED_TRACE(std::string(kind) + ", " + std::to_string(count) + " elements");
      if (count == kLarge && std::string(kind) != "gaussian") continue;
      const SliceContext context{7, 5, 99, 0, 1};
      const Bytes payload = tersum::test::encode(cpu, make_input(kind, count, 1), context);
      const Floats before = make_input("gaussian", count, 2);
      Floats sum = before;
      Floats cleared = before;
      cpu.decompress_add(payload, context, 0.3f, sum);
      cpu.clear_sent(payload, context, cleared);
      using tersum::test::bits;
      ASSERT_TRUE(bits(bench.decompress(payload, count, context)) ==
                  bits(tersum::test::decode(cpu, payload, count, context)));
      ASSERT_TRUE(bits_of_sums(bench.decompress_add(payload, before, 0.3f, context)) ==
                  bits_of_sums(sum));
      ASSERT_TRUE(bits(bench.clear_sent(payload, before, context)) == bits(cleared));
      ASSERT_TRUE(bench.status().is_ok());
    }
  }
}

TEST_P(TwinBytes, EncodesSlicesOfAGradientAsTheCpuDoes) {
  Bench bench(GetParam(), 10'000);
  if (!bench.has_twin()) GTEST_SKIP() << "has no twin";
  const std::size_t block = bench.cpu().traits().block_count;
  if (block == 0) GTEST_SKIP() << "is never cut";
  const Floats input = make_input("gaussian", 10'000, 3);
  const auto state = bench.cpu().make_state(10'000);
  bench.make_state(10'000);
  const std::size_t first = block * ((5000 + block - 1) / block);
  for (std::uint64_t step = 0; step < 3; ++step) {
    for (const std::size_t begin : {first, std::size_t{0}}) {
      if (step == 1 && begin == 0) continue;  // this part keeps its state
      const std::size_t end = begin == 0 ? first : std::max<std::size_t>(first, 10'000);
      if (begin >= 10'000) continue;
      const auto part = std::span(input).subspan(begin, std::min<std::size_t>(end, 10'000) - begin);
      const SliceContext context{1, step, 2, begin, 0};
      ASSERT_TRUE(bench.compress(part, context) ==
                  tersum::test::encode(bench.cpu(), part, context, state.get()));
    }
    if (step == 2) bench.state()->rollback();
    if (step != 2) bench.state()->commit(bench.stream());
    if (!state) continue;
    if (step == 2) state->rollback();
    if (step != 2) state->commit();
    ASSERT_TRUE(bench.state()->save(bench.stream()) == state->save());
  }
}

TEST_P(TwinBytes, DrawsByThePlaceInTheGradient) {
  Bench bench(GetParam(), 3000);
  if (!bench.has_twin()) GTEST_SKIP() << "has no twin";
  if (!bench.cpu().traits().randomised) GTEST_SKIP() << "draws nothing";
  bench.make_state(4000);
  const Floats input = make_input("gaussian", 2500, 4);
  for (const std::uint64_t offset : {0, 1, 4, 8, 13, 1000}) {
    const auto state = bench.cpu().make_state(4000);
    const SliceContext context{9, 8, 7, offset, 6};
    EXPECT_TRUE(bench.compress(input, context) ==
                tersum::test::encode(bench.cpu(), input, context, state.get()))
        << "offset " << offset;
  }
}

TEST_P(TwinBytes, RefusesExactlyThePayloadsThatTheCpuRefuses) {
  constexpr std::size_t kCount = 1500;
  Bench bench(GetParam(), kCount);
  if (!bench.has_twin()) GTEST_SKIP() << "has no twin";
  const Compressor& cpu = bench.cpu();
  const Bytes good = tersum::test::encode(cpu, make_input("gaussian", kCount, 1));
  std::mt19937 generator(11);
  for (int round = 0; round < 200; ++round) {
    Bytes payload = good;
    const std::size_t place = round < 40 ? generator() % 16 : generator() % payload.size();
    payload[place] ^= std::byte{1} << generator() % 8;
    if (round % 4 == 3) payload[generator() % payload.size()] = std::byte{0xff};
    Floats expected(kCount, -77.0f);
    Code code = Code::Ok;
    try {
      cpu.decompress(payload, {}, expected);
    } catch (const Error& error) {
      code = error.code();
    }
    const Floats found = bench.decompress(payload, kCount);
    ASSERT_EQ(bench.status().code(), code) << "round " << round << ", byte " << place;
    ASSERT_TRUE(bits_of_sums(found) == bits_of_sums(expected)) << "round " << round;
  }
  EXPECT_THROW(bench.decompress(std::span(good).first(good.size() - 1), kCount), Error);
}

INSTANTIATE_TEST_SUITE_P(All, TwinBytes, testing::ValuesIn(twin_specs()),
                         [](const auto& test) { return tersum::test::test_name(test.param); });

}  // namespace
}  // namespace tersum::gpu::test
