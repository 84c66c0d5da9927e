// Specs, rules and saved states from users and files: understood or refused with InvalidArgument.
#include <gtest/gtest.h>

#include <random>

#include "compressors/rules.hpp"
#include "conformance/compressors_support.hpp"

namespace tersum::test {
namespace {

constexpr char kAlphabet[] = "topkqintsgerdmfu0123456789.,:=+*?; -_\t\xff";

// A known text with a few characters replaced, removed, doubled or inserted.
std::string mutated(std::string text, std::mt19937& random) {
  for (auto edits = random() % 5; edits > 0; --edits) {
    const std::size_t at = text.empty() ? 0 : random() % (text.size() + 1);
    const char letter = kAlphabet[random() % (sizeof kAlphabet - 1)];
    switch (random() % 4) {
      case 0:
        text.insert(at, 1, letter);
        break;
      case 1:
        if (at < text.size()) text.erase(at, 1 + random() % 3);
        break;
      case 2:
        if (at < text.size()) text[at] = letter;
        break;
      default:
        text.insert(at, text.substr(0, random() % 6));
    }
  }
  return text;
}

TEST(SpecFuzz, EverySpecIsUnderstoodOrRefused) {
  std::mt19937 random(1);
  const auto specs = all_specs();
  std::size_t understood = 0;
  for (int round = 0; round < 6000; ++round) {
    const std::string spec = mutated(specs[random() % specs.size()], random);
    try {
      const auto compressor = make_compressor(spec);
      ASSERT_EQ(make_compressor(compressor->spec())->spec(), compressor->spec()) << spec;
      compressor->max_payload_bytes(1000);
      ++understood;
    } catch (const Error& error) {
      ASSERT_EQ(error.code(), Code::InvalidArgument) << spec;
      ASSERT_NE(error.status().message().find(spec), std::string::npos) << error.what();
    }
  }
  EXPECT_GT(understood, 500u);
  EXPECT_LT(understood, 5500u);
}

TEST(RulesFuzz, EveryRuleTextIsUnderstoodOrRefused) {
  std::mt19937 random(2);
  const std::string base = "*.bias=none; *norm*=none; embed*=topk:ratio=0.001+ef";
  for (int round = 0; round < 3000; ++round) {
    const std::string text = mutated(mutated(base, random), random);
    try {
      const compressors::CompressorRules rules("sign", text, 16);
      rules.choose(mutated("layer.norm.bias", random), 100, DType::Float32, std::nullopt);
    } catch (const Error& error) {
      ASSERT_EQ(error.code(), Code::InvalidArgument) << text;
    }
  }
}

TEST(StateFuzz, EverySavedStateIsLoadedOrRefused) {
  std::mt19937 random(3);
  for (const char* spec : {"sign+ef", "topk+ef+momentum=0.9"}) {
    const auto compressor = make_compressor(spec);
    const auto state = compressor->make_state(50);
    encode(*compressor, gaussian(50, 1), {}, state.get());
    state->commit();
    const Bytes good = state->save();
    std::size_t loaded = 0;
    for (int round = 0; round < 2000; ++round) {
      Bytes bad = good;
      if (random() % 2 == 0) bad.resize(random() % (2 * good.size()));
      for (auto edits = random() % 3; edits > 0 && !bad.empty(); --edits) {
        bad[random() % bad.size()] ^= static_cast<std::byte>(1 + random() % 255);
      }
      const Bytes before = state->save();
      try {
        state->load(bad);
        ASSERT_EQ(state->save(), bad);
        ++loaded;
      } catch (const Error& error) {
        ASSERT_EQ(error.code(), Code::InvalidArgument);
        ASSERT_EQ(state->save(), before);
      }
    }
    EXPECT_GT(loaded, 0u);
  }
}

}  // namespace
}  // namespace tersum::test
