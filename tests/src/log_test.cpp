#include "src/log.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>
#include <thread>
#include <vector>

#include "tersum/error.hpp"

namespace tersum {
namespace {

using ::testing::HasSubstr;
using ::testing::internal::CaptureStderr;
using ::testing::internal::GetCapturedStderr;

TEST(Logger, WritesRankLevelAndMessageOnOneLine) {
  CaptureStderr();
  Logger("info", 2).warn("rank 1 is silent");
  EXPECT_THAT(GetCapturedStderr(),
              testing::MatchesRegex("\\[tersum rank 2\\] [0-9:.]+ warning: rank 1 is silent\n"));
}

TEST(Logger, HasNoRankBeforeTheJoin) {
  CaptureStderr();
  Logger("info").info("joining");
  EXPECT_THAT(GetCapturedStderr(), testing::StartsWith("[tersum] "));
}

TEST(Logger, LeavesOutWhatIsLessSevereThanItsLevel) {
  const Logger logger("warn", 0);
  CaptureStderr();
  logger.trace("one");
  logger.debug("two");
  logger.info("three");
  logger.warn("four");
  logger.error("five");
  const std::string text = GetCapturedStderr();
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 2);
  EXPECT_THAT(text, testing::AllOf(HasSubstr("four"), HasSubstr("five")));
  EXPECT_FALSE(logger.enabled(LogLevel::Info));
  EXPECT_TRUE(logger.enabled(LogLevel::Warn));
}

TEST(Logger, WritesNothingWhenOff) {
  const Logger logger("off", 0);
  CaptureStderr();
  logger.error("lost");
  logger.write(LogLevel::Off, "lost");
  EXPECT_EQ(GetCapturedStderr(), "");
  EXPECT_FALSE(logger.enabled(LogLevel::Off));
}

TEST(Logger, NeverReadsAMessageAsAFormat) {
  CaptureStderr();
  Logger("info", 0).info("{} {0} %v %n {:d}");
  EXPECT_THAT(GetCapturedStderr(), HasSubstr("info: {} {0} %v %n {:d}\n"));
}

TEST(Logger, RefusesAnUnknownLevel) {
  try {
    const Logger logger("loud");
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::InvalidArgument);
    EXPECT_THAT(error.what(), testing::AllOf(HasSubstr("loud"), HasSubstr("warn")));
  }
}

TEST(Logger, KeepsLinesOfManyThreadsAndLoggersWhole) {
  constexpr int kThreads = 8;
  constexpr int kLines = 200;
  CaptureStderr();
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([t] {
      const Logger logger("info", t);
      for (int i = 0; i < kLines; ++i) logger.info(std::string(60, static_cast<char>('a' + t)));
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::istringstream lines(GetCapturedStderr());
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    ASSERT_GT(line.size(), 60u);
    const std::string body = line.substr(line.size() - 60);
    ASSERT_EQ(body, std::string(60, body[0])) << line;
    ASSERT_THAT(line, HasSubstr("[tersum rank " + std::to_string(body[0] - 'a') + "]"));
  }
  EXPECT_EQ(count, kThreads * kLines);
}

}  // namespace
}  // namespace tersum
