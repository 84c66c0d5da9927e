#include "src/config.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <set>

namespace tersum {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::InvalidArgument);
    return error.status().message();
  }
  return "no error";
}

std::string error_of(const SettingsEnvironment& environment) {
  return error_of([&] { (void)config_from(environment); });
}

/// Sets a variable of this process for the length of a test.
class ScopedVariable {
 public:
  ScopedVariable(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }
  ~ScopedVariable() { unsetenv(name_); }

 private:
  const char* name_;
};

TEST(Config, HasTheDocumentedDefaultsWithoutAnyVariable) {
  const Config config = config_from({});
  EXPECT_EQ(config.rank, -1);
  EXPECT_EQ(config.transport, "auto");
  EXPECT_EQ(config.bucket_bytes, 25u << 20);
  EXPECT_EQ(config.compressor, "none");
  EXPECT_NO_THROW(config.validate());
}

TEST(Config, ReadsEveryKindOfSetting) {
  const Config config = config_from({{"TERSUM_RANK", "2"},
                                     {"TERSUM_SIZE", "4"},
                                     {"TERSUM_ROOT", "[::1]:5000"},
                                     {"TERSUM_JOB", "nightly"},
                                     {"TERSUM_SECRET", "s3cret"},
                                     {"TERSUM_SPIN_US", "0"},
                                     {"TERSUM_TIMEOUT_MS", "1500"},
                                     {"TERSUM_ALGORITHM", "ring"},
                                     {"TERSUM_COMPRESSOR", "topk:ratio=0.01+ef"},
                                     {"TERSUM_COMPRESSOR_RULES", "*.bias=none"},
                                     {"TERSUM_SLICE_BYTES", "64K"},
                                     {"TERSUM_SEED", "18446744073709551615"}});
  EXPECT_EQ(config.rank, 2);
  EXPECT_EQ(config.size, 4);
  EXPECT_EQ(config.root, "[::1]:5000");
  EXPECT_EQ(config.job, "nightly");
  EXPECT_EQ(config.secret, "s3cret");
  EXPECT_EQ(config.spin, std::chrono::microseconds(0));
  EXPECT_EQ(config.timeout, std::chrono::milliseconds(1500));
  EXPECT_EQ(config.algorithm, "ring");
  EXPECT_EQ(config.compressor, "topk:ratio=0.01+ef");
  EXPECT_EQ(config.compressor_rules, "*.bias=none");
  EXPECT_EQ(config.slice_bytes, 65536u);
  EXPECT_EQ(config.seed, 18446744073709551615ull);
}

TEST(Config, TreatsAnEmptyVariableAsNotSet) {
  EXPECT_EQ(config_from({{"TERSUM_THREADS", ""}}).threads, Config{}.threads);
  EXPECT_EQ(setting_value(Config{}, "TERSUM_THREADS", {{"TERSUM_THREADS", ""}}).origin, "default");
}

TEST(Config, NamesTheNearestSettingForAnUnknownVariable) {
  EXPECT_EQ(error_of({{"TERSUM_COMPRESOR", "none"}}),
            "TERSUM_COMPRESOR: unknown setting; did you mean TERSUM_COMPRESSOR?");
  EXPECT_THAT(error_of({{"TERSUM_SLICES_BYTE", "1"}}),
              HasSubstr("did you mean TERSUM_SLICE_BYTES"));
  EXPECT_THAT(error_of({{"TERSUM_compressor", "none"}}),
              HasSubstr("did you mean TERSUM_COMPRESSOR?"));
}

TEST(Config, ReportsAllProblemsAtOnce) {
  const std::string message =
      error_of({{"TERSUM_THREADS", "many"}, {"TERSUM_LOGG", "info"}, {"TERSUM_POLICY", "lifo"}});
  EXPECT_THAT(message, AllOf(HasSubstr("TERSUM_THREADS"), HasSubstr("TERSUM_LOGG"),
                             HasSubstr("TERSUM_POLICY")));
}

TEST(Config, LetsVariablesOfBenchmarksAndTestsPass) {
  EXPECT_NO_THROW((void)config_from({{"TERSUM_BENCH_BYTES", "1"}, {"TERSUM_TEST_X", "3"}}));
}

TEST(Config, NamesVariableValueAndRangeOfABadNumber) {
  EXPECT_EQ(error_of({{"TERSUM_THREADS", "257"}}),
            "TERSUM_THREADS: \"257\" is not allowed; allowed: integer, 0 to 256");
  for (const char* text : {"abc", "1.5", "1 ", " 1", "+1", "0x10", "99999999999999999999", "-1"}) {
    EXPECT_THAT(error_of({{"TERSUM_THREADS", text}}),
                AllOf(StartsWith("TERSUM_THREADS: \""), HasSubstr(text), HasSubstr("0 to 256")));
  }
  EXPECT_THAT(error_of({{"TERSUM_TIMEOUT_MS", "0"}}), HasSubstr("milliseconds, 1 to 86400000"));
}

TEST(Config, NamesChoicesAndTheNearestOne) {
  EXPECT_EQ(error_of({{"TERSUM_ALGORITHM", "rign"}}),
            "TERSUM_ALGORITHM: \"rign\" is not allowed (did you mean ring?); allowed: choice, "
            "auto, direct, oneshot, twoshot, ring, halving, doubling");
  EXPECT_THAT(error_of({{"TERSUM_ALGORITHM", "RING"}}), HasSubstr("did you mean ring?"));
}

TEST(Config, RefusesCompressorSpecsRulesAndEndpointsThatCannotBe) {
  EXPECT_THAT(error_of({{"TERSUM_COMPRESSOR", "topkk:ratio=0.01"}}),
              AllOf(StartsWith("TERSUM_COMPRESSOR: "), HasSubstr("topk")));
  EXPECT_THAT(error_of({{"TERSUM_COMPRESSOR_RULES", "*.bias=nonesuch"}}),
              StartsWith("TERSUM_COMPRESSOR_RULES: "));
  EXPECT_THAT(error_of({{"TERSUM_ROOT", "localhost"}}), StartsWith("TERSUM_ROOT: "));
}

TEST(Config, RefusesTextsThatWouldBreakLines) {
  EXPECT_THAT(error_of({{"TERSUM_JOB", "a\nb"}}), HasSubstr("control characters"));
  EXPECT_THAT(error_of({{"TERSUM_INTERFACE", "a-name-that-is-too-long"}}),
              HasSubstr("23 characters"));
}

TEST(Config, RefusesRanksThatContradictSizes) {
  EXPECT_THAT(error_of({{"TERSUM_RANK", "4"}, {"TERSUM_SIZE", "4"}}),
              HasSubstr("TERSUM_RANK=4: must be less than TERSUM_SIZE=4"));
  EXPECT_THAT(error_of({{"TERSUM_SIZE", "0"}}), HasSubstr("TERSUM_SIZE"));
  EXPECT_THAT(error_of({{"TERSUM_SIZE", "2"}, {"TERSUM_LOCAL_SIZE", "3"}}),
              HasSubstr("must not exceed"));
}

TEST(Config, ValidatesMembersThatAProgramHasSet) {
  Config config;
  config.threads = 1000;
  config.slice_bytes = 1;
  config.policy = "Priority";
  const std::string message = error_of([&] { config.validate(); });
  EXPECT_THAT(message, AllOf(HasSubstr("TERSUM_THREADS: \"1000\""),
                             HasSubstr("TERSUM_SLICE_BYTES: \"1\""), HasSubstr("TERSUM_POLICY")));
  Config negative;
  negative.timeout = std::chrono::milliseconds(-5);
  EXPECT_THAT(error_of([&] { negative.validate(); }), HasSubstr("TERSUM_TIMEOUT_MS: \"-5\""));
  Config job;
  job.job.clear();
  EXPECT_THAT(error_of([&] { job.validate(); }), HasSubstr("TERSUM_JOB"));
}

TEST(Config, NeverNamesTheSecret) {
  const std::string message = error_of({{"TERSUM_SECRET", "hunter2\n"}});
  EXPECT_THAT(message, AllOf(HasSubstr("TERSUM_SECRET: \"***\""), Not(HasSubstr("hunter2"))));
  Config config;
  config.secret = "hunter2";
  EXPECT_EQ(setting_value(config, "TERSUM_SECRET", {}).value, "***");
  EXPECT_THAT(agreement_text(config), Not(HasSubstr("hunter2")));
}

TEST(Config, TellsWhereAValueComesFrom) {
  const SettingsEnvironment environment = {{"TERSUM_THREADS", "3"}, {"TERSUM_SLICE_BYTES", "64K"}};
  Config config = config_from(environment);
  EXPECT_EQ(setting_value(config, "TERSUM_THREADS", environment).origin, "environment");
  EXPECT_EQ(setting_value(config, "TERSUM_SLICE_BYTES", environment).value, "64K");
  EXPECT_EQ(setting_value(config, "TERSUM_LOG", environment).origin, "default");
  config.threads = 5;
  config.log = "info";
  EXPECT_EQ(setting_value(config, "TERSUM_THREADS", environment).origin, "program");
  EXPECT_EQ(setting_value(config, "TERSUM_THREADS", environment).value, "5");
  EXPECT_EQ(setting_value(config, "TERSUM_LOG", environment).origin, "program");
  EXPECT_THAT(error_of([&] { (void)setting_value(config, "TERSUM_THREAD", environment); }),
              HasSubstr("did you mean TERSUM_THREADS?"));
}

TEST(Config, ReadsTheEnvironmentOfTheProcess) {
  const ScopedVariable threads("TERSUM_THREADS", "7");
  EXPECT_EQ(Config::from_environment().threads, 7);
  EXPECT_EQ(setting_value(Config::from_environment(), "TERSUM_THREADS").origin, "environment");
  const ScopedVariable misspelt("TERSUM_THREDS", "7");
  EXPECT_THAT(error_of([] { (void)Config::from_environment(); }), HasSubstr("TERSUM_THREDS"));
}

TEST(Config, ComparesExactlyTheSettingsThatMustAgree) {
  std::set<std::string> compared;
  for (const Setting& setting : settings()) {
    if (setting.must_agree) compared.insert(setting.variable);
  }
  EXPECT_EQ(compared,
            (std::set<std::string>{"TERSUM_ALGORITHM", "TERSUM_BUCKET_BYTES", "TERSUM_COMPRESSOR",
                                   "TERSUM_COMPRESSOR_RULES", "TERSUM_COMPRESS_MIN_BYTES",
                                   "TERSUM_DEVICE_SLICE_BYTES", "TERSUM_DEVICE_STAGING",
                                   "TERSUM_POLICY", "TERSUM_SEED", "TERSUM_SLICE_BYTES"}));
  Config other;
  other.credit_bytes = 1;
  other.trace = "elsewhere";
  EXPECT_EQ(agreement_text(other), agreement_text(Config{}));
  other.seed = 9;
  EXPECT_NE(agreement_text(other), agreement_text(Config{}));
  EXPECT_THAT(agreement_text(other), HasSubstr("TERSUM_SEED=9\n"));
}

TEST(Config, ComparesWhatSpecsAndRulesMean) {
  const auto agreement = [](const std::string& spec, const std::string& rules) {
    Config config;
    config.compressor = spec;
    config.compressor_rules = rules;
    return agreement_text(config);
  };
  const std::string text = agreement("topk", "*.bias=none; fc*=qint+ef");
  EXPECT_EQ(agreement(" topk : ratio=0.010", "*.bias = none;fc*=qint:block=512 +ef;"), text);
  EXPECT_THAT(text, HasSubstr("TERSUM_COMPRESSOR=topk:ratio=0.01\n"));
  EXPECT_NE(agreement("topk:ratio=0.02", "*.bias=none; fc*=qint+ef"), text);
  EXPECT_NE(agreement("topk", "*.bias=none; fc*=qint"), text);
  EXPECT_NE(agreement("topk", "fc*=qint+ef; *.bias=none"), text);  // the first that matches wins
  EXPECT_THAT(agreement("nonesuch", ""), HasSubstr("TERSUM_COMPRESSOR=nonesuch\n"));
}

TEST(Settings, RoundTripThroughTheEnvironment) {
  for (const Setting& setting : settings()) {
    EXPECT_FALSE(setting.help.empty()) << setting.variable;
    EXPECT_FALSE(setting.allowed.empty()) << setting.variable;
    const SettingsEnvironment environment = {{setting.variable, setting.default_value}};
    const Config config = config_from(environment);
    EXPECT_EQ(setting_value(config, setting.variable, environment).value, setting.default_value);
  }
}

TEST(Settings, NameEveryMemberOnce) {
  std::set<std::string> names;
  for (const Setting& setting : settings()) names.insert(setting.variable);
  EXPECT_EQ(names.size(), settings().size());
  // A change of one variable changes one value: no two rows share a member.
  const std::map<std::string, std::string> other = {
      {"integer", "1"},  {"bytes", "96"},         {"milliseconds", "77"}, {"microseconds", "5"},
      {"text", "other"}, {"endpoint", "other:1"}, {"spec", "bf16"},       {"rules", "x=none"}};
  for (const Setting& changed : settings()) {
    const std::string choice = changed.allowed.substr(changed.allowed.rfind(' ') + 1);
    const auto text = other.find(changed.type);
    const SettingsEnvironment environment = {
        {changed.variable, text == other.end() ? choice : text->second}};
    Config config;
    ASSERT_LE(apply_environment(environment, config).size(), 1u);
    for (const Setting& setting : settings()) {
      const std::string value = setting_value(config, setting.variable, {}).value;
      const bool same = value == setting.default_value;
      EXPECT_TRUE(setting.variable == changed.variable || same)
          << changed.variable << " changes " << setting.variable;
    }
  }
}

TEST(Bytes, AreReadWithSuffixes) {
  const std::map<std::string, std::uint64_t> good = {
      {"0", 0},           {"4096", 4096},   {"64K", 65536},      {"64k", 65536},
      {"8MiB", 8u << 20}, {"1G", 1u << 30}, {"2TB", 2ull << 40}, {"512B", 512}};
  for (const auto& [text, expected] : good) {
    std::uint64_t bytes = 1;
    EXPECT_TRUE(parse_bytes(text, bytes)) << text;
    EXPECT_EQ(bytes, expected) << text;
  }
  for (const char* text :
       {"", "K", "-1", "1.5M", "1 K", "1KK", "1X", "1Ki", "18014398509481985K"}) {
    std::uint64_t bytes = 1;
    EXPECT_FALSE(parse_bytes(text, bytes)) << text;
    EXPECT_EQ(bytes, 1u) << text;
  }
}

TEST(Bytes, AreWrittenInTheShortestExactSpelling) {
  EXPECT_EQ(format_bytes(0), "0");
  EXPECT_EQ(format_bytes(1000), "1000");
  EXPECT_EQ(format_bytes(4096), "4K");
  EXPECT_EQ(format_bytes(25u << 20), "25M");
  EXPECT_EQ(format_bytes(1025u << 10), "1025K");
}

}  // namespace
}  // namespace tersum
