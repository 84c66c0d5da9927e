// Lines of tersum-run's ranks.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <random>
#include <string>

#include "src/tools/run_output.hpp"

namespace tersum::tools {
namespace {

TEST(LinePrefixer, GivesOutWholeLinesOnly) {
  LinePrefixer lines("[3] ");
  EXPECT_EQ(lines.add("one\ntw"), "[3] one\n");
  EXPECT_EQ(lines.add("o"), "");
  EXPECT_EQ(lines.add("\n\nthree"), "[3] two\n[3] \n");
  EXPECT_EQ(lines.finish(), "[3] three\n");
  EXPECT_EQ(lines.finish(), "");
}

TEST(LinePrefixer, TakesACarriageReturnForAnEnd) {
  LinePrefixer lines("[0] ");
  EXPECT_EQ(lines.add("10%\r20%\r30"), "[0] 10%\r[0] 20%\r");
  EXPECT_EQ(lines.add("%\r\ndone\r\n"), "[0] 30%\r\n[0] done\r\n");
  EXPECT_EQ(lines.add("x\r"), "[0] x\r");
  EXPECT_EQ(lines.add("\ny\n"), "\n[0] y\n");
}

TEST(LinePrefixer, BreaksEndlessLines) {
  LinePrefixer lines("");
  std::string all;
  for (int i = 0; i < 3; ++i) all += lines.add(std::string(1u << 20, 'x'));
  all += lines.finish();
  EXPECT_EQ(all.size(), 3 * ((1u << 20) + 1));
}

TEST(LinePrefixer, GivesTheSameHoweverBytesArrive) {
  const std::string text = "a\r\nbc\r\rd\n\n\re\n\r\nf";
  LinePrefixer whole("> ");
  std::string expected = whole.add(text);
  expected += whole.finish();
  for (std::size_t step = 1; step < text.size(); ++step) {
    LinePrefixer lines("> ");
    std::string output;
    for (std::size_t at = 0; at < text.size(); at += step)
      output += lines.add(text.substr(at, step));
    EXPECT_EQ(output + lines.finish(), expected) << step;
  }
}

TEST(OutputSink, WritesEverythingInOrderAndForgetsWhatNobodyReads) {
  std::array<int, 2> pipe;
  ASSERT_EQ(::pipe2(pipe.data(), O_CLOEXEC), 0);
  OutputSink sink(pipe[1]);
  std::string expected;
  for (int i = 0; i < 2000; ++i) expected += std::to_string(i) + "\n";
  sink.add(expected);
  std::string got;
  while (sink.backlog_bytes() > 0) {
    sink.write_some();
    std::array<char, 8192> chunk;
    got.append(chunk.data(), static_cast<std::size_t>(::read(pipe[0], chunk.data(), chunk.size())));
  }
  EXPECT_EQ(got, expected);
  ::close(pipe[0]);
  ::signal(SIGPIPE, SIG_IGN);
  sink.add("x");
  sink.write_some();
  EXPECT_EQ(sink.backlog_bytes(), 0u);
  sink.add("y");
  EXPECT_EQ(sink.backlog_bytes(), 0u);
  ::close(pipe[1]);
}

}  // namespace
}  // namespace tersum::tools
