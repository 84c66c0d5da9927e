// Random numbers, sizes and compressor specs for tests, drawn from gtest's seed: 0, or with
// --gtest_shuffle that of --gtest_random_seed, which grows by one in each round of --gtest_repeat.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <random>
#include <string>

namespace tersum::test {

class Draw {
 public:
  /// Of case `number` of a test.
  explicit Draw(std::uint64_t number)
      : generator_(number * 1'000'003 +
                   static_cast<std::uint64_t>(testing::UnitTest::GetInstance()->random_seed())) {}

  /// 0 ... n - 1.
  std::size_t below(std::size_t n) { return generator_() % n; }
  bool one_in(std::size_t n) { return below(n) == 0; }
  /// 1 ... most, small and large ones alike.
  std::size_t size_up_to(std::size_t most) {
    const double exponent = static_cast<double>(below(1 << 20)) / (1 << 20);
    return static_cast<std::size_t>(std::pow(static_cast<double>(most), exponent));
  }
  /// Around whole blocks, tiny, or any size; 0 as well.
  std::size_t count_up_to(std::size_t most, std::size_t block) {
    if (one_in(4) && block > 0) return std::min(most, block * below(5) + below(3));
    return one_in(8) ? below(5) : size_up_to(most);
  }
  template <class T>
  T of(std::initializer_list<T> choices) {
    return choices.begin()[below(choices.size())];
  }
  unsigned seed() { return static_cast<unsigned>(generator_()); }

 private:
  std::mt19937_64 generator_;
};

/// A method with any parameters and decorators that it takes.
inline std::string draw_spec(Draw& draw) {
  std::string spec = draw.of<const char*>({"fp16", "bf16", "topk", "randomk", "qint", "sign"});
  const bool sparse = spec == "topk" || spec == "randomk";
  const bool in_blocks = spec == "qint" || spec == "sign";
  bool feeds_back = draw.below(3) > 0;
  if (sparse && draw.one_in(2))
    spec += ":k=" + std::to_string(draw.size_up_to(100'000));
  else if (sparse)
    spec += ":ratio=" + std::to_string(static_cast<double>(1 + draw.size_up_to(100'000)) / 100'001);
  if (spec.starts_with("randomk") && draw.one_in(4)) {
    spec += ",scale=unbiased";
    feeds_back = false;
  }
  if (in_blocks) {
    const std::size_t block = draw.one_in(2) ? 32 * draw.size_up_to(2048) : 32u << draw.below(6);
    spec += ":block=" + std::to_string(block);
  }
  if (spec.starts_with("qint"))
    spec += ",bits=" + std::to_string(2 + draw.below(7)) +
            ",rounding=" + draw.of<const char*>({"nearest", "stochastic"});
  if (feeds_back) spec += "+ef";
  if (feeds_back && draw.one_in(2)) spec += "+momentum=0." + std::to_string(draw.below(100));
  return spec;
}

}  // namespace tersum::test
