#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "compressors/rules.hpp"
#include "compressors/text.hpp"
#include "conformance/compressors_support.hpp"

namespace tersum::test {
namespace {

using compressors::CompressorRules;
using testing::AllOf;
using testing::HasSubstr;

// The message of the InvalidArgument that `call` throws.
template <class Call>
std::string message_of(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::InvalidArgument);
    return error.status().message();
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

std::string refusal(const std::string& spec) {
  return message_of([&] { make_compressor(spec); });
}

TEST(Spec, CanonicalFormNamesAllParametersAndOrdersDecorators) {
  EXPECT_EQ(make_compressor("topk")->spec(), "topk:ratio=0.01");
  EXPECT_EQ(make_compressor("topk:k=3")->spec(), "topk:k=3");
  EXPECT_EQ(make_compressor("topk:ratio=1e-3+momentum=0.90+ef")->spec(),
            "topk:ratio=0.001+ef+momentum=0.9");
  EXPECT_EQ(make_compressor("topk:ratio=0.00001")->spec(), "topk:ratio=1e-05");
  EXPECT_EQ(make_compressor(" qint : block = 64 , bits = 8 + ef ")->spec(),
            "qint:bits=8,block=64,rounding=nearest+ef");
  EXPECT_EQ(make_compressor("sign")->spec(), "sign:block=512");
  EXPECT_EQ(make_compressor("randomk")->spec(), "randomk:ratio=0.01,scale=none");
  EXPECT_EQ(make_compressor("none")->spec(), "none");
}

TEST(Spec, MistakesNameTheNearestRightWord) {
  EXPECT_THAT(refusal("topkk"), AllOf(HasSubstr("topkk"), HasSubstr("did you mean 'topk'")));
  EXPECT_THAT(refusal("TOPK"), HasSubstr("did you mean 'topk'"));
  EXPECT_THAT(refusal("sign+EF"), HasSubstr("did you mean 'ef'"));
  EXPECT_THAT(refusal("qint:bit=4"), AllOf(HasSubstr("'bit'"), HasSubstr("did you mean 'bits'")));
  EXPECT_THAT(refusal("qint:rounding=nearst"), HasSubstr("did you mean 'nearest'"));
  EXPECT_THAT(refusal("sign+eff"), AllOf(HasSubstr("+eff"), HasSubstr("did you mean 'ef'")));
  EXPECT_THAT(refusal("sign+ef+momentu=0.9"), HasSubstr("did you mean 'momentum'"));
}

TEST(Spec, MistakesAreNamedWithTheirRange) {
  EXPECT_THAT(refusal("qint:bits=9"), AllOf(HasSubstr("bits=9"), HasSubstr("from 2 to 8")));
  EXPECT_THAT(refusal("qint:bits=x"), HasSubstr("bits=x"));
  EXPECT_THAT(refusal("qint:bits=4x"), HasSubstr("bits=4x"));
  EXPECT_THAT(refusal("qint:block=100"), HasSubstr("try block=128"));
  EXPECT_THAT(refusal("topk:ratio=1.5"), AllOf(HasSubstr("ratio=1.5"), HasSubstr("to 1")));
  EXPECT_THAT(refusal("topk:ratio=nan"), HasSubstr("ratio=nan"));
  EXPECT_THAT(refusal("topk:k=0"), HasSubstr("k=0"));
  EXPECT_THAT(refusal("none:x=1"), HasSubstr("has no parameters"));
}

TEST(Spec, BadSyntaxIsNamed) {
  EXPECT_THAT(refusal(""), HasSubstr("no method name"));
  EXPECT_THAT(refusal("+ef"), HasSubstr("no method name"));
  EXPECT_THAT(refusal("topk:"), HasSubstr("not key=value"));
  EXPECT_THAT(refusal("topk:ratio"), HasSubstr("'ratio' is not key=value"));
  EXPECT_THAT(refusal("topk:ratio="), HasSubstr("no value"));
  EXPECT_THAT(refusal("topk:=3"), HasSubstr("not key=value"));
  EXPECT_THAT(refusal("topk:k=3,k=4"), HasSubstr("'k' is given twice"));
  EXPECT_THAT(refusal("topk+"), HasSubstr("no decorator name"));
  EXPECT_THAT(refusal("topk++ef"), HasSubstr("no decorator name"));
}

TEST(Spec, DecoratorMistakesAreNamed) {
  EXPECT_THAT(refusal("topk+ef+ef"), HasSubstr("'+ef' is given twice"));
  EXPECT_THAT(refusal("topk+ef+momentum=0.1+momentum=0.2"), HasSubstr("given twice"));
  EXPECT_THAT(refusal("topk+ef=1"), HasSubstr("takes no value"));
  EXPECT_THAT(refusal("topk+momentum=0.9"), HasSubstr("add '+ef'"));
  EXPECT_THAT(refusal("topk+ef+momentum"), HasSubstr("needs a number"));
  for (const char* bad : {"1", "-0.1", "x", "0.9x", "nan", "inf", ""}) {
    EXPECT_THAT(refusal(std::string("topk+ef+momentum=") + bad), HasSubstr("needs a number"));
  }
}

CompressorEntry entry(const std::string& name, std::uint16_t id) {
  return {name, id, "for a test", [](SpecParameters& parameters) {
            return make_compressor("sign:block=" +
                                   std::to_string(parameters.get_integer("block", 64, 32, 128)));
          }};
}

TEST(Registry, RegisteredMethodsWorkInSpecs) {
  register_compressor(entry("mine", 0x9000));
  EXPECT_EQ(make_compressor("mine:block=96+ef")->spec(), "sign:block=96+ef");
  EXPECT_THAT(refusal("mine:blok=96"), HasSubstr("did you mean 'block'"));
  EXPECT_EQ(compressor_entries().back().name, "mine");
}

TEST(Registry, RefusesWhatIsTakenOrReserved) {
  register_compressor(entry("taken", 0x9001));
  const auto refuse = [](CompressorEntry bad) {
    return message_of([&] { register_compressor(std::move(bad)); });
  };
  EXPECT_THAT(refuse(entry("taken", 0x9002)), HasSubstr("name is taken"));
  EXPECT_THAT(refuse(entry("topk", 0x9002)), HasSubstr("name is taken"));
  EXPECT_THAT(refuse(entry("other", 0x9001)), HasSubstr("taken by 'taken'"));
  EXPECT_THAT(refuse(entry("other", 0x7fff)), HasSubstr("reserved"));
  EXPECT_THAT(refuse(entry("a:b", 0x9002)), HasSubstr("letters, digits"));
  EXPECT_THAT(refuse(entry("", 0x9002)), HasSubstr("letters, digits"));
  EXPECT_THAT(refuse({"empty", 0x9002, "", nullptr}), HasSubstr("no factory"));
}

TEST(Registry, ThreadsMayRegisterAndLookUpTogether) {
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 4; ++t) {
    threads.emplace_back([t] {
      for (unsigned i = 0; i < 20; ++i) {
        const std::string name = "thread" + std::to_string(t) + "_" + std::to_string(i);
        register_compressor(entry(name, static_cast<std::uint16_t>(0xa000 + 100 * t + i)));
        EXPECT_EQ(make_compressor(name)->spec(), "sign:block=64");
      }
    });
  }
  for (auto& thread : threads) thread.join();
}

TEST(Registry, WireIdsAndNamesAreUniqueAndSelfConsistent) {
  std::vector<std::string> names;
  std::vector<std::uint16_t> ids;
  for (const CompressorEntry& known : compressor_entries()) {
    if (known.help == "for a test") continue;  // registered above, aliases of sign
    EXPECT_EQ(std::count(names.begin(), names.end(), known.name), 0);
    EXPECT_EQ(std::count(ids.begin(), ids.end(), known.wire_id), 0);
    names.push_back(known.name);
    ids.push_back(known.wire_id);
    EXPECT_EQ(make_compressor(known.name)->traits().name, known.name);
    EXPECT_EQ(make_compressor(known.name)->traits().wire_id, known.wire_id);
    EXPECT_FALSE(known.help.empty());
  }
}

std::string chosen(const CompressorRules& rules, const std::string& key,
                   std::size_t count = 1 << 20, DType dtype = DType::Float32,
                   const std::optional<std::string>& explicit_spec = std::nullopt) {
  return rules.choose(key, count, dtype, explicit_spec)->spec();
}

TEST(Rules, FirstMatchWins) {
  const CompressorRules rules(
      "qint", "*.bias=none; *norm*=none; embed*=topk:ratio=0.001+ef; layer?.w=fp16; *.w=bf16;", 0);
  EXPECT_EQ(chosen(rules, "conv.bias"), "none");
  EXPECT_EQ(chosen(rules, "embed.bias"), "none");
  EXPECT_EQ(chosen(rules, "embedding.weight"), "topk:ratio=0.001+ef");
  EXPECT_EQ(chosen(rules, "block.norm2.weight"), "none");
  EXPECT_EQ(chosen(rules, "layer1.w"), "fp16");
  EXPECT_EQ(chosen(rules, "layer12.w"), "bf16");
  EXPECT_EQ(chosen(rules, "conv.weight"), "qint:bits=4,block=512,rounding=nearest");
}

TEST(Rules, SmallAndNonFloatGradientsAreLeftAlone) {
  const CompressorRules rules("sign", "*=sign", 4096);
  EXPECT_EQ(chosen(rules, "x", 1023), "none");
  EXPECT_EQ(chosen(rules, "x", 1024), "sign:block=512");
  EXPECT_EQ(chosen(rules, "x", 2047, DType::Float16), "none");
  EXPECT_EQ(chosen(rules, "x", 2048, DType::BFloat16), "sign:block=512");
  for (const DType dtype : {DType::Int8, DType::UInt8, DType::Int16, DType::Int32, DType::Int64,
                            DType::Bool, DType::Float64}) {
    EXPECT_EQ(chosen(rules, "x", 1 << 20, dtype), "none");
  }
}

TEST(Rules, ExplicitSpecBeatsRulesAndSize) {
  const CompressorRules rules("sign", "*=topk", 4096);
  EXPECT_EQ(chosen(rules, "x", 10, DType::Float32, "fp16"), "fp16");
  EXPECT_EQ(chosen(rules, "x", 1 << 20, DType::Int64, "none"), "none");
}

TEST(Rules, ExplicitSpecOnAnIntegerIsRefusedByName) {
  const CompressorRules rules("none", "", 0);
  for (const DType dtype : {DType::Int32, DType::Bool, DType::Float64}) {
    const std::string message = message_of([&] { chosen(rules, "step", 9, dtype, "sign"); });
    EXPECT_THAT(message, AllOf(HasSubstr("'step'"), HasSubstr(std::string(to_string(dtype))),
                               HasSubstr("use 'none'")));
  }
  EXPECT_THAT(message_of([&] { chosen(rules, "w", 9, DType::Float32, "sgn"); }),
              AllOf(HasSubstr("'w'"), HasSubstr("did you mean 'sign'")));
}

TEST(Rules, MistakesAreFoundWhenTheyAreRead) {
  const auto refuse = [](const char* text) {
    return message_of([&] { CompressorRules("none", text, 0); });
  };
  EXPECT_THAT(refuse("*.bias=none; foo"), AllOf(HasSubstr("rule 2 'foo'"), HasSubstr("write")));
  EXPECT_THAT(refuse("=none"), HasSubstr("rule 1"));
  EXPECT_THAT(refuse("a=sgn"), AllOf(HasSubstr("rule 1 'a=sgn'"), HasSubstr("'sign'")));
  EXPECT_THAT(refuse("a="), HasSubstr("no method name"));
  EXPECT_THAT(message_of([] { CompressorRules("nono", "", 0); }), HasSubstr("'none'"));
}

TEST(Text, GlobsMatchWholeNames) {
  using compressors::glob_match;
  EXPECT_TRUE(glob_match("*", ""));
  EXPECT_TRUE(glob_match("", ""));
  EXPECT_FALSE(glob_match("", "a"));
  EXPECT_TRUE(glob_match("a*b*c", "a12b34bc"));
  EXPECT_FALSE(glob_match("a*b*c", "a12b34b"));
  EXPECT_TRUE(glob_match("**a**", "xxaxx"));
  EXPECT_FALSE(glob_match("?", ""));
  EXPECT_TRUE(glob_match("a?c", "abc"));
  EXPECT_FALSE(glob_match("abc", "abcd"));
  EXPECT_FALSE(glob_match("abcd", "abc"));
  EXPECT_TRUE(glob_match("*ab", "aaab"));
}

TEST(Text, NumbersReadBackAsTheyWere) {
  for (const double value : {0.01, 0.1, 1.0 / 3.0, 1e-9, 0.9, 123456.789}) {
    EXPECT_EQ(std::stod(compressors::number_text(value)), value);
  }
}

}  // namespace
}  // namespace tersum::test
