// The running control plane: first cause wins, death and silence are noticed, good-byes are told.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <filesystem>
#include <latch>

#include "control_support.hpp"

namespace tersum::transport::testing {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;
using FrameType = control::FrameType;

std::vector<std::byte> pattern(std::size_t count, int seed) {
  std::vector<std::byte> bytes(count);
  for (std::size_t i = 0; i < count; ++i) {
    bytes[i] =
        static_cast<std::byte>((i * 31 + static_cast<std::size_t>(seed) * 7 + i / 251) & 255);
  }
  return bytes;
}

/// Rank 0 in the test's own thread and rank 1 by hand.
struct Duo {
  FreePort port;
  TestRank root;
  RawPeer peer;

  explicit Duo(std::chrono::milliseconds heartbeat_timeout = kPatience)
      : root(request_of(0, 2, port.port())) {
    root.request.heartbeat_timeout = heartbeat_timeout;
    std::thread thread([this] {
      peer.connect(port.port());
      EXPECT_TRUE(peer.join(request_of(1, 2, port.port())));
    });
    EXPECT_TRUE(root.join_and_start());
    thread.join();
  }
};

TEST(Control, FirstOfManyReportsWinsOnAllRanks) {
  constexpr int kRanks = 8;
  FreePort port;
  auto ranks = make_ranks(kRanks, port.port());
  std::barrier together(kRanks);
  run_ranks(ranks, [&](TestRank& rank) {
    ASSERT_TRUE(rank.join_and_start());
    const int me = rank.request.rank;
    together.arrive_and_wait();
    rank.plane->report({Code::Mismatch, "reported by " + std::to_string(me), "rank, op", me});
    EXPECT_TRUE(rank.run_until_failure());
    rank.plane->report({Code::Internal, "too late", {}, me});
    EXPECT_TRUE(rank.leave());
    together.arrive_and_wait();
    rank.plane->close();
  });
  const Status& first = ranks[0]->news.failures.at(0);
  EXPECT_EQ(first.code(), Code::Mismatch);
  EXPECT_EQ(first.message(), "reported by " + std::to_string(first.rank()));
  EXPECT_EQ(first.origin(), "rank, op");
  for (const auto& rank : ranks) {
    ASSERT_EQ(rank->news.failures.size(), 1u);
    EXPECT_EQ(rank->news.failures[0].to_string(), first.to_string());
    EXPECT_EQ(rank->news.failures[0].rank(), first.rank());
  }
}

TEST(Control, OfOneRankReportsToItself) {
  TestRank alone(request_of(0, 1, 0));
  ASSERT_TRUE(alone.join_and_start());
  alone.plane->report({Code::Timeout, "slow"});
  EXPECT_TRUE(alone.news.failures.empty());  // never from inside report()
  EXPECT_TRUE(alone.run_until_failure());
  EXPECT_TRUE(alone.leave(bytes_of("blob")));
  EXPECT_THAT(*alone.blobs, ElementsAre(bytes_of("blob")));
}

TEST(Control, RefusesAReportWithoutACause) {
  TestRank alone(request_of(0, 1, 0));
  ASSERT_TRUE(alone.join_and_start());
  EXPECT_THROW(alone.plane->report(Status::ok()), Error);
}

TEST(Control, BringsAllBlobsToRankZero) {
  constexpr std::size_t kSizes[] = {3, 0, 1, 1u << 20, 9u << 20};
  FreePort port;
  auto ranks = make_ranks(5, port.port());
  for (auto& rank : ranks) rank->request.heartbeat_timeout = 20s;
  run_ranks(ranks, [&](TestRank& rank) {
    ASSERT_TRUE(rank.join_and_start());
    const int me = rank.request.rank;
    EXPECT_TRUE(rank.leave(pattern(kSizes[me], me)));
    rank.plane->close();
  });
  ASSERT_EQ(ranks[0]->blobs->size(), 5u);
  for (int rank = 0; rank < 5; ++rank) {
    const auto index = static_cast<std::size_t>(rank);
    EXPECT_EQ((*ranks[0]->blobs)[index], pattern(kSizes[rank], rank)) << rank;
    EXPECT_TRUE(ranks[index]->news.failures.empty());
    EXPECT_EQ(ranks[index]->news.left.size(), 4u);
    EXPECT_EQ(ranks[index]->blobs->empty(), rank > 0);
  }
}

TEST(Control, RefusesABlobOverTheLimitAndASecondGoodBye) {
  TestRank alone(request_of(0, 1, 0));
  ASSERT_TRUE(alone.join());
  EXPECT_THROW(alone.plane->leave({}, {}), Error);  // not started
  alone.plane->start(alone.news);
  EXPECT_THROW(alone.plane->leave(std::vector<std::byte>(control::kMaxBlobBytes + 1), {}), Error);
  alone.plane->leave({}, {});
  EXPECT_THROW(alone.plane->leave({}, {}), Error);
}

TEST(Control, TellsTheOthersAtOnceWhoHasLeft) {
  FreePort port;
  auto ranks = make_ranks(4, port.port());
  std::latch heard(3);
  run_ranks(ranks, [&](TestRank& rank) {
    ASSERT_TRUE(rank.join_and_start());
    if (rank.request.rank != 2) {
      EXPECT_TRUE(rank.run_until([&] { return !rank.news.left.empty(); }));
      EXPECT_EQ(rank.news.left.front(), 2);
      heard.count_down();
      EXPECT_TRUE(rank.run_until([&] { return heard.try_wait(); }));
    }
    EXPECT_TRUE(rank.leave());
    rank.plane->close();
  });
  EXPECT_THAT(ranks[0]->news.left, UnorderedElementsAre(1, 2, 3));
  EXPECT_THAT(ranks[1]->news.left, UnorderedElementsAre(0, 2, 3));
}

TEST(Control, NamesARankWhoseConnectionEndsWithoutAGoodBye) {
  FreePort port;
  auto ranks = make_ranks(5, port.port());
  std::latch all_in(5);
  run_ranks(ranks, [&](TestRank& rank) {
    ASSERT_TRUE(rank.join_and_start());
    all_in.count_down();
    EXPECT_TRUE(rank.run_until([&] { return all_in.try_wait(); }));
    if (rank.request.rank == 2) {
      rank.plane.reset();
      return;
    }
    EXPECT_TRUE(rank.run_until_failure());
    rank.plane.reset();  // exits at once: not a new death for those who are left
  });
  for (const auto& rank : ranks) {
    if (rank->request.rank == 2) continue;
    ASSERT_EQ(rank->news.failures.size(), 1u);
    EXPECT_EQ(rank->news.failures[0].code(), Code::PeerLost);
    EXPECT_EQ(rank->news.failures[0].rank(), 2);
    EXPECT_EQ(rank->news.failures[0].message(), "rank 2 died (connection closed)");
  }
}

TEST(Control, NamesRankZeroWhenItIsLost) {
  FreePort port;
  auto ranks = make_ranks(4, port.port());
  run_ranks(ranks, [&](TestRank& rank) {
    ASSERT_TRUE(rank.join_and_start());
    if (rank.request.rank == 0) return rank.plane.reset();
    EXPECT_TRUE(rank.run_until_failure());
    EXPECT_EQ(rank.news.failures[0].code(), Code::PeerLost);
    EXPECT_EQ(rank.news.failures[0].rank(), 0);
    EXPECT_TRUE(rank.leave(pattern(1000, 1)));
  });
}

TEST(Control, AReportSurvivesTheExitOfItsSender) {
  FreePort port;
  auto ranks = make_ranks(3, port.port());
  run_ranks(ranks, [&](TestRank& rank) {
    ASSERT_TRUE(rank.join_and_start());
    if (rank.request.rank == 1) {
      rank.plane->report({Code::OutOfMemory, "no room", {}, 1});
      return rank.plane.reset();
    }
    EXPECT_TRUE(rank.run_until_failure());
    EXPECT_EQ(rank.news.failures[0].code(), Code::OutOfMemory);
  });
}

TEST(Control, AFailureLeavesRankZeroBeforeItExits) {
  FreePort port;
  auto ranks = make_ranks(3, port.port());
  run_ranks(ranks, [&](TestRank& rank) {
    ASSERT_TRUE(rank.join_and_start());
    if (rank.request.rank == 0) {
      rank.plane->report({Code::Aborted, "enough", {}, 0});
      return rank.plane.reset();
    }
    EXPECT_TRUE(rank.run_until_failure());
    EXPECT_EQ(rank.news.failures[0].code(), Code::Aborted);
  });
}

TEST(Control, CollectsBlobsAfterAFailure) {
  FreePort port;
  auto ranks = make_ranks(3, port.port());
  std::latch blobs_sent(2);
  run_ranks(ranks, [&](TestRank& rank) {
    ASSERT_TRUE(rank.join_and_start());
    if (rank.request.rank == 2) rank.plane->report({Code::Internal, "bug", {}, 2});
    EXPECT_TRUE(rank.run_until_failure());
    if (rank.request.rank == 0) blobs_sent.wait();
    EXPECT_TRUE(rank.leave(pattern(5000, rank.request.rank)));
    if (rank.request.rank != 0) blobs_sent.count_down();
  });
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(ranks[0]->blobs->at(static_cast<std::size_t>(rank)), pattern(5000, rank));
  }
}

TEST(Control, LeavingEndsThoughARankNeverSaysGoodByeAfterAFailure) {
  Duo duo;
  duo.root.plane->report({Code::Internal, "bug"});
  EXPECT_TRUE(duo.root.leave(bytes_of("mine")));  // rank 1 stays silent with its socket open
  EXPECT_THAT(*duo.root.blobs, ElementsAre(bytes_of("mine"), control::Bytes{}));
}

TEST(Control, NamesARankThatFallsSilent) {
  Duo duo(200ms);
  duo.peer.send(FrameType::Heartbeat);
  EXPECT_TRUE(duo.root.run_until_failure());
  EXPECT_EQ(duo.root.news.failures[0].code(), Code::PeerLost);
  EXPECT_EQ(duo.root.news.failures[0].rank(), 1);
  EXPECT_THAT(duo.root.news.failures[0].message(), HasSubstr("rank 1 hangs"));
  // The silent one is told too, for when it wakes up.
  std::optional<RawPeer::Frame> frame;
  do {
    frame = duo.peer.receive();
  } while (frame && frame->type == FrameType::Heartbeat);
  ASSERT_TRUE(frame);
  EXPECT_EQ(frame->type, FrameType::Failure);
}

TEST(Control, DoesNotTakeItsOwnPauseForThePeersSilence) {
  Duo duo(200ms);
  duo.peer.send(FrameType::Heartbeat);
  const auto hear_a_beat = [&] {
    std::atomic<bool> heard{false};
    std::thread listener([&] {
      const auto frame = duo.peer.receive();
      EXPECT_TRUE(frame && frame->type == FrameType::Heartbeat);
      heard = true;
    });
    EXPECT_TRUE(duo.root.run_until([&] { return heard.load(); }));
    listener.join();
  };
  hear_a_beat();
  std::this_thread::sleep_for(500ms);  // rank 0 is held up for longer than the timeout
  duo.peer.send(FrameType::Heartbeat);
  hear_a_beat();
  EXPECT_TRUE(duo.root.news.failures.empty());
}

TEST(Control, KeepsABusyJobAliveByHeartbeats) {
  FreePort port;
  auto ranks = make_ranks(3, port.port());
  for (auto& rank : ranks) rank->request.heartbeat_timeout = 2s;
  run_ranks(ranks, [&](TestRank& rank) {
    ASSERT_TRUE(rank.join_and_start());
    const auto until = std::chrono::steady_clock::now() + 3s;
    EXPECT_TRUE(rank.run_until([&] { return std::chrono::steady_clock::now() > until; }));
    EXPECT_TRUE(rank.leave());
    EXPECT_TRUE(rank.news.failures.empty()) << rank.news.failures[0].to_string();
    rank.plane->close();
  });
}

TEST(Control, NamesARankThatBreaksTheProtocol) {
  using Break = std::function<void(RawPeer&)>;
  const std::vector<Break> breaks = {
      [](RawPeer& peer) { peer.send_raw(std::string("\x11\0\0\0\x13", 5) + std::string(16, 'x')); },
      [](RawPeer& peer) { peer.send_raw("\xff\xff\xff\xff"); },
      [](RawPeer& peer) {
        peer.send(FrameType::Failure, control::encode(Status(Code::Timeout, "")));
      },
      [](RawPeer& peer) { peer.send(FrameType::Report, bytes_of("?")); },
      [](RawPeer& peer) { peer.send(FrameType::GoodBye, control::encode_count(5)); },
      [](RawPeer& peer) { peer.send(static_cast<FrameType>(0x7f)); },
      [](RawPeer& peer) { peer.send(FrameType::Hello, bytes_of("again")); },
  };
  for (const Break& act : breaks) {
    Duo duo;
    act(duo.peer);
    EXPECT_TRUE(duo.root.run_until_failure());
    EXPECT_EQ(duo.root.news.failures[0].code(), Code::Protocol);
    EXPECT_EQ(duo.root.news.failures[0].rank(), 1);
    EXPECT_THAT(duo.root.news.failures[0].message(), HasSubstr("rank 1 sent "));
  }
}

TEST(Control, ReportsWithARankOutOfRangeNameNobody) {
  Duo duo;
  duo.peer.send(FrameType::Report, control::encode(Status(Code::Timeout, "slow", {}, 77)));
  EXPECT_TRUE(duo.root.run_until_failure());
  EXPECT_EQ(duo.root.news.failures[0].rank(), -1);
}

TEST(Control, DeliversWhatHappenedBeforeTheStart) {
  TestRank alone(request_of(0, 1, 0));
  ASSERT_TRUE(alone.join());
  alone.plane->report({Code::Timeout, "slow"});
  alone.plane->start(alone.news);
  EXPECT_TRUE(alone.run_until_failure());

  FreePort port;
  TestRank root(request_of(0, 2, port.port()));
  std::thread thread([&] {
    RawPeer peer;
    peer.connect(port.port());
    EXPECT_TRUE(peer.join(request_of(1, 2, port.port())));
    peer.send(FrameType::Report, control::encode(Status(Code::Mismatch, "early")));
  });
  ASSERT_TRUE(root.join());
  thread.join();
  root.plane->start(root.news);
  EXPECT_TRUE(root.run_until_failure());
  EXPECT_EQ(root.news.failures[0].message(), "early");
}

TEST(Control, CallsNobodyAfterClose) {
  Duo duo;
  bool done = false;
  duo.root.plane->report({Code::Timeout, "slow"});
  duo.root.plane->leave({}, [&](auto) { done = true; });
  duo.peer.close();
  duo.root.plane->close();
  duo.root.plane->close();
  duo.root.context.restart();
  duo.root.context.run();
  EXPECT_FALSE(done);
  EXPECT_TRUE(duo.root.news.failures.empty());
}

TEST(Control, MayBeDestroyedByItsOwnNews) {
  Duo duo;
  duo.root.news.on_failure_hook = [&] { duo.root.plane.reset(); };
  duo.peer.close();
  EXPECT_TRUE(duo.root.run_until_failure());
  duo.root.context.restart();
  duo.root.context.run();
  EXPECT_EQ(duo.root.news.failures.size(), 1u);
}

TEST(Control, JoinsAndLeavesAgainAndAgainWithoutGrowth) {
  const auto descriptors = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
  };
  FreePort port;
  auto ranks = make_ranks(3, port.port());
  const auto run = [&](int rounds) {
    run_ranks(ranks, [rounds](TestRank& rank) {
      for (int round = 0; round < rounds; ++round) {
        rank.blobs.reset();
        ASSERT_TRUE(rank.join_and_start()) << rank.join_error->to_string();
        ASSERT_TRUE(rank.leave());
        ASSERT_TRUE(rank.news.failures.empty()) << rank.news.failures[0].to_string();
        rank.plane.reset();
      }
    });
  };
  run(1);
  const auto before = descriptors();
  run(50);
  EXPECT_EQ(descriptors(), before);
}

}  // namespace
}  // namespace tersum::transport::testing
