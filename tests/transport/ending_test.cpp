// How transports sleep, wake, give peers up and end. Runs over all of them.
#include <poll.h>

#include <algorithm>

#include "transport/support.hpp"

namespace tersum::transport::testing {
namespace {

class Ending : public ::testing::TestWithParam<Factory> {};
INSTANTIATE_TEST_SUITE_P(All, Ending, ::testing::ValuesIn(all_factories()), factory_name);

bool readable(int descriptor, int milliseconds) {
  pollfd wakeup{descriptor, POLLIN, 0};
  return poll(&wakeup, 1, milliseconds) == 1;
}

TEST_P(Ending, ASleepingReceiverIsWoken) {
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{100}, std::size_t{1'000'000}}) {
    SCOPED_TRACE(bytes);
    Job job(GetParam(), 2);
    const auto data = pattern(bytes, 1);
    std::vector<std::byte> into(bytes);
    TestRequest send, receive;
    job[1].post_receive(0, envelope(1).key, room(into), receive);
    job.fall_asleep(1);
    job[0].post_send(1, envelope(1), view(data), send);
    // Rank 1 moves only when its descriptor says so.
    const auto hang = std::chrono::steady_clock::now() + kHang;
    while (!(receive.done() && send.done()) && std::chrono::steady_clock::now() < hang) {
      job[0].progress();
      if (!readable(job[1].descriptor(), 0)) continue;
      job[1].progress();
      job.fall_asleep(1);
    }
    ASSERT_TRUE(receive.done() && send.done()) << "nobody woke the receiver";
    EXPECT_EQ(into, data);
  }
}

TEST_P(Ending, ASleepingSenderIsWoken) {
  Job job(GetParam(), 2);
  const auto data = pattern(2'000'000, 1);
  std::vector<std::byte> into(data.size());
  TestRequest send, receive;
  job[0].post_send(1, envelope(1), view(data), send);
  ASSERT_TRUE(job.pump([&] { return job.listener(1).arrivals.size() == 1; }));
  job.fall_asleep(0);
  EXPECT_FALSE(send.done());
  job[1].post_receive(0, envelope(1).key, room(into), receive);
  const auto hang = std::chrono::steady_clock::now() + kHang;
  while (!(receive.done() && send.done()) && std::chrono::steady_clock::now() < hang) {
    job[1].progress();
    if (!readable(job[0].descriptor(), 0)) continue;
    job[0].progress();
    job.fall_asleep(0);
  }
  ASSERT_TRUE(receive.done() && send.done()) << "nobody woke the sender";
  EXPECT_EQ(into, data);
}

TEST_P(Ending, DoesNotSleepOnItsOwnCompletions) {
  TestRequest receive, send;  // outlive the job, which ends what is pending
  Job job(GetParam(), 2);
  job.settle();
  job[0].post_receive(1, envelope(1).key, {}, receive);
  job.fall_asleep(0);
  job[0].cancel(receive);
  EXPECT_FALSE(job[0].arm()) << "a completion waits to be delivered";
  job[0].progress();
  EXPECT_TRUE(receive.done());
  job[0].post_send(0, envelope(1), {}, send);
  EXPECT_FALSE(job[0].arm()) << "an arrival waits to be shown";
  job[0].progress();
  job.fall_asleep(0);
}

TEST_P(Ending, AnIdleTransportStaysAsleep) {
  Job job(GetParam(), 2);
  const auto data = pattern(100'000, 1);
  std::vector<std::byte> into(data.size());
  TestRequest send, receive;
  job[1].post_receive(0, envelope(1).key, room(into), receive);
  job[0].post_send(1, envelope(1), view(data), send);
  ASSERT_TRUE(job.pump([&] { return receive.done() && send.done(); }));
  job.settle();
  for (int rank = 0; rank < 2; ++rank) {
    int wakeups = 0;
    for (int i = 0; i < 20; ++i) {
      job.fall_asleep(rank);
      wakeups += readable(job[rank].descriptor(), 10) ? 1 : 0;
    }
    // A look at its peers now and then is fine; a descriptor that is always ready is not.
    EXPECT_LE(wakeups, 5);
  }
}

TEST_P(Ending, DisconnectEndsEverythingWithThatPeerOnly) {
  Job job(GetParam(), 3);
  const auto data = pattern(3'000'000, 1);
  std::vector<std::byte> into(data.size()), other(data.size());
  TestRequest sends[3], receives[3];
  job[1].post_send(0, envelope(1), view(data), sends[1]);  // arrives, and is kept
  ASSERT_TRUE(job.pump([&] { return job.listener(0).arrivals.size() == 1; }));
  job[0].post_send(1, envelope(2), view(data), sends[0]);
  job[0].post_receive(1, envelope(3).key, room(into), receives[0]);
  job[0].post_receive(2, envelope(3).key, room(other), receives[2]);
  job.settle();
  const Status cause(Code::Timeout, "rank 1 is too slow", {}, 1);
  job[0].disconnect(1, cause);
  EXPECT_FALSE(receives[0].done());
  ASSERT_TRUE(job.pump([&] { return sends[0].done() && receives[0].done() && sends[1].done(); }));
  for (const TestRequest* request : {&sends[0], &receives[0]}) {
    EXPECT_EQ(request->status.code(), Code::Timeout);
    EXPECT_EQ(request->status.message(), cause.message());
    EXPECT_EQ(request->status.rank(), 1);
  }
  EXPECT_TRUE(job.listener(0).failures.empty()) << "whoever disconnects needs no news of it";
  ASSERT_TRUE(job.pump([&] { return !job.listener(1).failures.empty(); }))
      << "the other side does not notice";
  EXPECT_EQ(job.listener(1).failures[0].first, 0);

  TestRequest late_send, late_receive;
  job[0].post_send(1, envelope(4), view(data), late_send);
  job[0].post_receive(1, envelope(1).key, room(into), late_receive);
  EXPECT_FALSE(late_send.done() || late_receive.done());
  ASSERT_TRUE(job.pump([&] { return late_send.done() && late_receive.done(); }));
  EXPECT_EQ(late_send.status.code(), Code::Timeout);
  EXPECT_EQ(late_receive.status.code(), Code::Timeout);

  job[2].post_send(0, envelope(3), view(data), sends[2]);
  ASSERT_TRUE(job.pump([&] { return sends[2].done() && receives[2].done(); }));
  EXPECT_TRUE(receives[2].status.is_ok());
  EXPECT_EQ(other, data) << "the third rank is not concerned";
  job[0].disconnect(1, cause);  // again: nothing happens
  job.settle();
  for (const TestRequest& request : receives) EXPECT_LE(request.calls, 1);
  EXPECT_EQ(job.listener(1).failures.size(), 1u);
}

TEST_P(Ending, DisconnectWorksBeforeAnythingWasSaid) {
  Job job(GetParam(), 2);
  TestRequest receive, send;
  job[0].disconnect(1, {Code::PeerLost, "gone", {}, 1});
  job[0].post_receive(1, envelope(1).key, {}, receive);
  job[0].post_send(1, envelope(1), {}, send);
  ASSERT_TRUE(job.pump([&] { return receive.done() && send.done(); }));
  EXPECT_EQ(receive.status.code(), Code::PeerLost);
}

TEST_P(Ending, CloseEndsWhatIsPendingWithAborted) {
  Job job(GetParam(), 2);
  const auto data = pattern(5'000'000, 1);
  std::vector<std::byte> into(data.size());
  TestRequest sends[2], receives[2];
  job[0].post_send(1, envelope(1), view(data), sends[0]);
  job[0].post_send(0, envelope(1), view(data), sends[1]);
  job[0].post_receive(1, envelope(2).key, room(into), receives[0]);
  job[0].post_receive(0, envelope(2).key, room(into), receives[1]);
  ASSERT_TRUE(job.pump([&] {
    return job.listener(1).arrivals.size() == 1 && job.listener(0).arrivals.size() == 1;
  }));
  job[0].close(std::chrono::milliseconds(20));
  for (const TestRequest* request : {&sends[0], &sends[1], &receives[0], &receives[1]}) {
    ASSERT_EQ(request->calls, 1);
    EXPECT_EQ(request->status.code(), Code::Aborted) << request->status.to_string();
  }
  job.destroy(0);
  EXPECT_EQ(sends[0].calls, 1);
}

TEST_P(Ending, CloseReleasesTheSendersOfKeptMessages) {
  Job job(GetParam(), 2);
  const auto data = pattern(5'000'000, 1);
  TestRequest send;
  job[0].post_send(1, envelope(1), view(data), send);
  ASSERT_TRUE(job.pump([&] { return job.listener(1).arrivals.size() == 1; }));
  job.close(1, std::chrono::seconds(30));
  ASSERT_TRUE(job.pump([&] { return send.done(); }));
  EXPECT_EQ(send.calls, 1);
}

TEST_P(Ending, ARankThatClosesIsAbsentButHasNotFailed) {
  Job job(GetParam(), 2);
  const auto data = pattern(500, 1);
  std::vector<std::byte> into(data.size());
  TestRequest send, receives[2], late;
  job[1].post_receive(0, envelope(1).key, room(into), receives[0]);
  job[1].post_receive(0, envelope(2).key, room(into), receives[1]);
  job[0].post_send(1, envelope(1), view(data), send);
  ASSERT_TRUE(job.pump([&] { return send.done() && receives[0].done(); }));
  job.close(0, std::chrono::seconds(30));
  ASSERT_TRUE(job.pump([&] { return receives[1].done(); }));
  EXPECT_EQ(into, data);
  EXPECT_EQ(receives[1].status.code(), Code::PeerLost);
  EXPECT_EQ(receives[1].status.rank(), 0);
  EXPECT_NE(receives[1].status.message().find("left"), std::string::npos)
      << receives[1].status.to_string();
  job[1].post_send(0, envelope(3), view(data), late);
  ASSERT_TRUE(job.pump([&] { return late.done(); }));
  EXPECT_EQ(late.status.code(), Code::PeerLost);
  job.settle();
  EXPECT_TRUE(job.listener(1).failures.empty());
}

TEST_P(Ending, CloseDeliversWhatWasSentBefore) {
  Job job(GetParam(), 2);
  constexpr std::size_t kMessages = 50;
  std::vector<std::vector<std::byte>> data, into;
  std::vector<TestRequest> sends(kMessages), receives(kMessages);
  for (std::size_t i = 0; i < kMessages; ++i) {
    data.push_back(pattern(i * 5000, i));
    into.emplace_back(data[i].size());
    job[1].post_receive(0, envelope(i).key, room(into[i]), receives[i]);
  }
  for (std::size_t i = 0; i < kMessages; ++i) {
    job[0].post_send(1, envelope(i), view(data[i]), sends[i]);
  }
  ASSERT_TRUE(job.pump([&] {
    return std::all_of(sends.begin(), sends.end(), [](const auto& s) { return s.done(); });
  }));
  job.close(0, std::chrono::seconds(30));
  ASSERT_TRUE(job.pump([&] {
    return std::all_of(receives.begin(), receives.end(), [](const auto& r) { return r.done(); });
  }));
  for (std::size_t i = 0; i < kMessages; ++i) {
    ASSERT_TRUE(receives[i].status.is_ok()) << i << ": " << receives[i].status.to_string();
    ASSERT_EQ(into[i], data[i]);
  }
}

TEST_P(Ending, CloseWithoutConnectionsReturnsAtOnce) {
  auto transports = GetParam().make(2);
  transports[0]->close(std::chrono::hours(1));  // never connected
  Job job(GetParam(), 2);
  job[0].close(std::chrono::hours(1));  // connected, but nothing was ever said
}

TEST_P(Ending, ConnectRefusesForeignAddresses) {
  auto transports = GetParam().make(2);
  TestListener listener;
  auto addresses = std::vector{transports[0]->address(), transports[1]->address()};
  addresses[1] = pattern(40, 3);
  try {
    transports[0]->connect(0, addresses, listener);
    FAIL() << "an address of random bytes was accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::Mismatch);
    EXPECT_NE(error.status().message().find("rank 1"), std::string::npos) << error.what();
  }
}

TEST_P(Ending, CanBeMadeAndClosedManyTimes) {
  for (int round = 0; round < 20; ++round) {
    Job job(GetParam(), 2);
    TestRequest send, receive;
    job[1].post_receive(0, envelope(1).key, {}, receive);
    job[0].post_send(1, envelope(1), {}, send);
    ASSERT_TRUE(job.pump([&] { return send.done() && receive.done(); }));
    job.close(0, std::chrono::seconds(30));
    job.close(1, std::chrono::seconds(30));
  }
}

}  // namespace
}  // namespace tersum::transport::testing
