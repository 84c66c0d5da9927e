#include "exchange/trace_file.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "tersum/error.hpp"

namespace tersum::replay {
namespace {

using testing::HasSubstr;

class TraceFile : public testing::Test {
 protected:
  void TearDown() override { std::filesystem::remove(path_); }

  std::vector<TracedGradient> read(const std::string& text) {
    std::ofstream(path_, std::ios::binary) << text;
    return read_trace(path_.string());
  }
  /// Message of the InvalidArgument error that `text` gives.
  std::string complaint(const std::string& text) {
    try {
      read(text);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::InvalidArgument);
      return error.status().message();
    }
    return "no error";
  }

  const std::filesystem::path path_ =
      std::filesystem::temp_directory_path() / ("trace-" + std::to_string(::getpid()) + ".csv");
};

TEST_F(TraceFile, GivesGradientsInTheOrderOfTheFile) {
  const auto trace = read("name,numel,gap_us\nfc.weight,2048,12.5\nfc.bias,8,0\n");
  ASSERT_EQ(trace.size(), 2u);
  EXPECT_EQ(trace[0].name, "fc.weight");
  EXPECT_EQ(trace[0].count, 2048u);
  EXPECT_EQ(trace[0].time, std::chrono::nanoseconds(12500));
  EXPECT_EQ(trace[1].name, "fc.bias");
  EXPECT_EQ(trace[1].count, 8u);
  EXPECT_EQ(trace[1].time.count(), 0);
}

TEST_F(TraceFile, FindsColumnsByNameAmongOthers) {
  const auto trace = read("index,gap_us,shape,numel,name\n7,3,4x2,8,conv\n");
  ASSERT_EQ(trace.size(), 1u);
  EXPECT_EQ(trace[0].name, "conv");
  EXPECT_EQ(trace[0].count, 8u);
  EXPECT_EQ(trace[0].time, std::chrono::microseconds(3));
}

TEST_F(TraceFile, MayHaveCarriageReturnsBlankLinesAndNoLastNewline) {
  const auto trace = read("name,numel,gap_us\r\na,1,1\r\n\r\nb,2,2");
  ASSERT_EQ(trace.size(), 2u);
  EXPECT_EQ(trace[1].name, "b");
  EXPECT_EQ(trace[1].time, std::chrono::microseconds(2));
}

TEST_F(TraceFile, NamesAFileThatIsNotThere) {
  try {
    read_trace("/nowhere/trace.csv");
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::InvalidArgument);
    EXPECT_THAT(error.status().message(), HasSubstr("/nowhere/trace.csv"));
  }
}

TEST_F(TraceFile, RefusesAFileWithoutContent) {
  for (const char* text : {"", "\n\n"}) EXPECT_THAT(complaint(text), HasSubstr("is empty"));
  EXPECT_THAT(complaint("name,numel,gap_us\n"), HasSubstr("line 1: holds no gradient"));
}

TEST_F(TraceFile, NamesTheColumnThatIsMissing) {
  EXPECT_THAT(complaint("name,gap_us\na,1\n"), HasSubstr("line 1: has no column numel"));
  EXPECT_THAT(complaint("numel,gap_us\n1,1\n"), HasSubstr("has no column name"));
  EXPECT_THAT(complaint("name,numel\na,1\n"), HasSubstr("has no column gap_us"));
}

TEST_F(TraceFile, NamesTheLineThatIsWrong) {
  const std::string header = "name,numel,gap_us\na,1,1\n";
  EXPECT_THAT(complaint(header + "b,2\n"), HasSubstr("line 3: has too few columns"));
  EXPECT_THAT(complaint(header + "\nb,x,1\n"), HasSubstr("line 4: 'x' is no whole number"));
  for (const char* count : {"", "0", "-4", "1.5", "2k", "2e12", "2000000000000", "nan"})
    EXPECT_THAT(complaint(header + "b," + count + ",1\n"),
                HasSubstr(std::string("line 3: '") + count + "' is no whole number from 1"));
  for (const char* gap : {"-0.5", "nan", "inf", "1e13", "3us"})
    EXPECT_THAT(complaint(header + "b,2," + gap + "\n"),
                HasSubstr(std::string("line 3: '") + gap + "' is no number from 0"));
  EXPECT_THAT(complaint(header + "b,2,\n"), HasSubstr("line 3: has too few columns"));
}

}  // namespace
}  // namespace tersum::replay
