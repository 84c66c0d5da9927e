#include "src/trace.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>

#include "tersum/communicator.hpp"
#include "tersum/error.hpp"

namespace tersum {
namespace {

using nlohmann::json;
using std::chrono::microseconds;
using std::chrono::nanoseconds;
namespace fs = std::filesystem;

Trace::Clock::time_point at(std::int64_t microsecond) {
  return Trace::Clock::time_point(microseconds(microsecond));
}

class TraceFiles : public testing::Test {
 protected:
  void SetUp() override {
    const auto* test = testing::UnitTest::GetInstance()->current_test_info();
    directory_ = fs::temp_directory_path() /
                 (std::string("tersum-trace-") + test->name() + "-" + std::to_string(getpid()));
    fs::create_directories(directory_);
  }
  void TearDown() override { fs::remove_all(directory_); }

  static json read(const fs::path& path) { return json::parse(std::ifstream(path)); }

  /// Spans and instants with the name of their process and lane.
  static std::vector<json> events(const json& file) {
    std::map<int, std::string> processes;
    std::map<std::pair<int, int>, std::string> lanes;
    std::vector<json> found;
    for (const json& event : file.at("traceEvents")) {
      const int pid = event.at("pid");
      if (event.at("ph") == "M") {
        if (event.at("name") == "process_name") processes[pid] = event.at("args").at("name");
        if (event.at("name") == "thread_name") {
          lanes[{pid, event.at("tid")}] = event.at("args").at("name");
        }
        continue;
      }
      json named = event;
      named["process"] = processes.at(pid);
      named["lane"] = lanes.at({pid, event.at("tid")});
      found.push_back(named);
    }
    return found;
  }

  fs::path directory_;
};

TEST_F(TraceFiles, HoldSpansOfAllRanksOnOneClock) {
  Trace first(0, true);
  Trace second(1, true);
  first.span("engine", "all_reduce", "collective", at(1000), at(1500), {"loss", -1, 4096});
  second.stage(Stage::Exchanging, at(100), at(350), {"fc1.weight", 3, 512});
  const std::vector<std::vector<std::byte>> blobs = {first.serialise(nanoseconds(0)),
                                                     second.serialise(microseconds(1000))};
  const json file = read(write_merged_trace(directory_, blobs));
  const std::vector<json> found = events(file);
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0]["process"], "rank 0");
  EXPECT_EQ(found[0]["lane"], "engine");
  EXPECT_EQ(found[0]["name"], "all_reduce");
  EXPECT_EQ(found[0]["cat"], "collective");
  EXPECT_EQ(found[0]["ph"], "X");
  EXPECT_EQ(found[0]["ts"], 1000.0);
  EXPECT_EQ(found[0]["dur"], 500.0);
  EXPECT_EQ(found[0]["args"], (json{{"key", "loss"}, {"bytes", 4096}}));
  EXPECT_EQ(found[1]["process"], "rank 1");
  EXPECT_EQ(found[1]["lane"], "slice 3");
  EXPECT_EQ(found[1]["name"], "Exchanging");
  EXPECT_EQ(found[1]["ts"], 1100.0) << "the second rank's clock is 1 ms behind";
  EXPECT_EQ(found[1]["args"], (json{{"key", "fc1.weight"}, {"slice", 3}, {"bytes", 512}}));
}

TEST_F(TraceFiles, KeepNanosecondsAndInstants) {
  Trace trace(4, true);
  trace.span("engine", "poll", "engine", Trace::Clock::time_point(nanoseconds(1234567)),
             Trace::Clock::time_point(nanoseconds(1234568)));
  trace.instant("engine", "peer lost", "failure");
  const json file = read(write_rank_trace(directory_, 4, trace.serialise(nanoseconds(0))));
  const std::vector<json> found = events(file);
  ASSERT_EQ(found.size(), 2u);
  EXPECT_DOUBLE_EQ(found[0]["ts"], 1234.567);
  EXPECT_DOUBLE_EQ(found[0]["dur"], 0.001);
  EXPECT_EQ(found[1]["ph"], "i");
  EXPECT_EQ(found[1]["s"], "t");
  EXPECT_TRUE(fs::exists(directory_ / "rank-4.json"));
}

TEST_F(TraceFiles, EscapeWhateverKeysHold) {
  Trace trace(0, true);
  const std::string odd = "quote \" slash \\ line\n tab\t nul";
  trace.span("engine", "a", "c", at(1), at(2), {odd, 0, 0});
  trace.span("engine", "b", "c", at(3), at(4), {"not utf-8: \xff\xfe", 0, 0});
  const std::vector<json> found =
      events(read(write_rank_trace(directory_, 0, trace.serialise(nanoseconds(0)))));
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0]["args"]["key"], odd);
  EXPECT_THAT(std::string(found[1]["args"]["key"]), testing::StartsWith("not utf-8: "));
}

TEST_F(TraceFiles, OrderLanesByNumber) {
  Trace trace(0, true);
  for (const int slice : {10, 2, 0}) trace.stage(Stage::Ready, at(1), at(2), {"", slice, 1});
  trace.span("pool", "encode", "pool", at(1), at(2));
  std::map<int, std::string> lanes;
  const json file = read(write_rank_trace(directory_, 0, trace.serialise(nanoseconds(0))));
  for (const json& event : file["traceEvents"]) {
    if (event["name"] == "thread_name") lanes[event["tid"]] = event["args"]["name"];
  }
  EXPECT_EQ(lanes, (std::map<int, std::string>{
                       {1, "pool"}, {2, "slice 0"}, {3, "slice 2"}, {4, "slice 10"}}));
}

TEST_F(TraceFiles, DrawOverlappingSpansInRowsOfTheirOwn) {
  Trace trace(0, true);
  trace.span("collectives", "c", "collective", at(30), at(40));
  trace.span("collectives", "a", "collective", at(10), at(30));
  trace.span("collectives", "b", "collective", at(20), at(50));
  std::map<std::string, std::string> lanes;
  const json file = read(write_rank_trace(directory_, 0, trace.serialise(nanoseconds(0))));
  for (const json& event : events(file)) lanes[event["name"]] = event["lane"];
  EXPECT_EQ(lanes, (std::map<std::string, std::string>{
                       {"a", "collectives"}, {"b", "collectives (2)"}, {"c", "collectives"}}));
}

TEST_F(TraceFiles, LeaveOutEmptyBlobsAndNoteBrokenOnes) {
  Trace trace(2, true);
  trace.span("engine", "a", "c", at(1), at(2));
  const std::string broken = R"({"rank":1,"dropped":0,"records":[[1,2]]})";
  std::vector<std::vector<std::byte>> blobs(3);
  for (const char c : broken) blobs[1].push_back(static_cast<std::byte>(c));
  blobs[2] = trace.serialise(nanoseconds(0));
  const json file = read(write_merged_trace(directory_, blobs));
  EXPECT_EQ(events(file).size(), 1u);
  EXPECT_THAT(file.dump(), testing::HasSubstr("rank 1 (its trace could not be read)"));
  EXPECT_THAT(file.dump(), testing::Not(testing::HasSubstr("rank 0")));
}

TEST_F(TraceFiles, TellHowManyRecordsWereDropped) {
  Trace trace(0, true, 3);
  for (int i = 0; i < 10; ++i) trace.span("engine", std::to_string(i), "c", at(i), at(i));
  EXPECT_EQ(trace.recorded_count(), 3u);
  EXPECT_EQ(trace.dropped_count(), 7u);
  const json file = read(write_rank_trace(directory_, 0, trace.serialise(nanoseconds(0))));
  const std::vector<json> found = events(file);
  ASSERT_EQ(found.size(), 3u);
  EXPECT_EQ(found[0]["name"], "7") << "the oldest go first";
  EXPECT_EQ(found[0]["process"], "rank 0 (7 oldest records dropped)");
}

TEST_F(TraceFiles, ReplaceThoseOfAnEarlierRunAndLeaveNothingElse) {
  Trace trace(0, true);
  write_rank_trace(directory_, 0, trace.serialise(nanoseconds(0)));
  trace.span("engine", "a", "c", at(1), at(2));
  const fs::path path = write_rank_trace(directory_, 0, trace.serialise(nanoseconds(0)));
  EXPECT_EQ(events(read(path)).size(), 1u);
  EXPECT_EQ(std::distance(fs::directory_iterator(directory_), fs::directory_iterator()), 1);
}

TEST_F(TraceFiles, HaveADirectoryMadeForThem) {
  prepare_trace_directory(directory_ / "a" / "b");
  EXPECT_TRUE(fs::is_directory(directory_ / "a" / "b"));
  EXPECT_TRUE(fs::is_empty(directory_ / "a" / "b"));
}

TEST_F(TraceFiles, AreRefusedAtStartWhereNothingCanBeWritten) {
  std::ofstream(directory_ / "file") << "in the way";
  for (const fs::path& bad :
       {directory_ / "file", directory_ / "file" / "below", fs::path("/proc")}) {
    try {
      prepare_trace_directory(bad);
      FAIL() << bad << " accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::InvalidArgument);
      EXPECT_THAT(error.what(), testing::AllOf(testing::HasSubstr("TERSUM_TRACE"),
                                               testing::HasSubstr(bad.string())));
    }
  }
}

TEST_F(TraceFiles, ThatCannotBeWrittenAreASystemError) {
  try {
    write_merged_trace(directory_ / "missing", {});
    FAIL() << "written";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::System);
    EXPECT_THAT(error.what(), testing::HasSubstr("timeline.json"));
  }
}

TEST(Trace, RecordsNothingWhenDisabled) {
  Trace trace(0, false);
  trace.span("engine", "a", "c", at(1), at(2));
  trace.instant("engine", "b", "c");
  { const TraceSpan span(trace, "engine", "d", "c"); }
  EXPECT_EQ(trace.recorded_count(), 0u);
  EXPECT_TRUE(trace.serialise(nanoseconds(0)).empty());
  EXPECT_EQ(trace.now(), Trace::Clock::time_point{});
}

TEST(Trace, RecordsScopes) {
  Trace trace(0, true);
  const Trace::Clock::time_point before = trace.now();
  { const TraceSpan span(trace, "pool", "encode", "pool", {"k", 1, 2}); }
  EXPECT_EQ(trace.recorded_count(), 1u);
  EXPECT_GE(trace.now(), before);
}

TEST_F(TraceFiles, AJobOfOneRankWritesTheTimelineOfAllRanks) {
  Config config;
  config.rank = 0;
  config.size = 1;
  config.trace = directory_.string();
  {
    Communicator alone = Communicator::connect(config);
    alone.barrier().wait();
  }
  EXPECT_FALSE(fs::exists(directory_ / "rank-0.json"));
  const std::vector<json> found = events(read(directory_ / "timeline.json"));
  ASSERT_FALSE(found.empty());
  EXPECT_EQ(found.front()["process"], "rank 0");
}

TEST(Trace, LosesNothingWhenManyThreadsRecord) {
  constexpr std::size_t kThreads = 8;
  constexpr std::size_t kRecords = 1000;
  Trace trace(0, true, kThreads * kRecords / 2);
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&trace] {
      for (std::size_t i = 0; i < kRecords; ++i) {
        trace.stage(Stage::Compressed, at(1), at(2), {"a key that is longer than most", 1, 1});
      }
    });
  }
  (void)trace.serialise(nanoseconds(0));  // may run beside recording
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(trace.recorded_count() + trace.dropped_count(), kThreads * kRecords);
  EXPECT_EQ(trace.recorded_count(), kThreads * kRecords / 2);
}

}  // namespace
}  // namespace tersum
