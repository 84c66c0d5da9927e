// What only the loopback transport can do: kill a rank, and withdraw a send.
#include "transport/loopback_transport.hpp"

#include <thread>

#include "transport/support.hpp"

namespace tersum::transport::testing {
namespace {

class Loopback : public ::testing::Test {
 protected:
  explicit Loopback(int ranks = 3)
      : hub_(std::make_shared<LoopbackHub>(ranks)),
        job_({"loopback",
              [this](int n) {
                std::vector<std::unique_ptr<Transport>> made;
                for (int r = 0; r < n; ++r) made.push_back(make_loopback_transport(hub_, r));
                return made;
              }},
             ranks) {}

  std::shared_ptr<LoopbackHub> hub_;
  Job job_;
};

TEST_F(Loopback, AKilledRankIsAFailedPeer) {
  const auto data = pattern(100, 1);
  std::vector<std::byte> into(100), other(100);
  TestRequest send, receive, own, kept, good_send, good_receive;
  job_[0].post_send(1, envelope(1), view(data), send);
  job_[0].post_receive(1, envelope(1).key, room(into), receive);
  job_[1].post_send(0, envelope(2), view(data), own);
  ASSERT_TRUE(job_.pump([&] {
    return job_.listener(0).arrivals.size() == 1 && job_.listener(1).arrivals.size() == 1;
  }));
  hub_->kill(1);
  ASSERT_TRUE(job_.pump([&] { return send.done() && receive.done(); }));
  for (const TestRequest* request : {&send, &receive}) {
    EXPECT_EQ(request->status.code(), Code::PeerLost);
    EXPECT_EQ(request->status.rank(), 1);
  }
  ASSERT_EQ(job_.listener(0).failures.size(), 1u);
  EXPECT_EQ(job_.listener(0).failures[0].first, 1);
  ASSERT_EQ(job_.listener(2).failures.size(), 1u);
  job_[0].post_receive(1, envelope(2).key, room(into), kept);
  job_[0].post_send(2, envelope(3), view(data), good_send);
  job_[2].post_receive(0, envelope(3).key, room(other), good_receive);
  ASSERT_TRUE(job_.pump([&] { return kept.done() && good_send.done() && good_receive.done(); }));
  EXPECT_EQ(kept.status.code(), Code::PeerLost) << "the dead rank's buffers are gone";
  EXPECT_EQ(other, data);
  EXPECT_FALSE(own.done()) << "the dead do nothing";
  TestRequest posthumous;
  job_[1].post_send(0, envelope(4), view(data), posthumous);
  job_.settle();
  EXPECT_FALSE(posthumous.done());
  EXPECT_EQ(job_.listener(0).arrivals.size(), 1u);
  job_[1].close(std::chrono::milliseconds(0));
  EXPECT_EQ(own.status.code(), Code::Aborted);
  EXPECT_EQ(posthumous.status.code(), Code::Aborted);
  EXPECT_EQ(job_.listener(0).failures.size(), 1u);
}

TEST_F(Loopback, ACancelledSendNeverArrives) {
  const auto data = pattern(100, 1), more = pattern(100, 2);
  std::vector<std::byte> into(100);
  TestRequest kept, unseen, send, receive;
  job_[0].post_send(1, envelope(1), view(data), kept);
  ASSERT_TRUE(job_.pump([&] { return job_.listener(1).arrivals.size() == 1; }));
  job_[0].post_send(1, envelope(1), view(data), unseen);
  job_[0].cancel(kept);
  job_[0].cancel(unseen);
  job_[0].post_send(1, envelope(1), view(more), send);
  job_[1].post_receive(0, envelope(1).key, room(into), receive);
  ASSERT_TRUE(
      job_.pump([&] { return kept.done() && unseen.done() && send.done() && receive.done(); }));
  EXPECT_EQ(kept.status.code(), Code::Aborted);
  EXPECT_EQ(unseen.status.code(), Code::Aborted);
  EXPECT_EQ(into, more);
  EXPECT_EQ(job_.listener(1).arrivals.size(), 2u);
}

TEST_F(Loopback, KillingInTheMiddleOfTrafficEndsEveryRequestOnce) {
  constexpr std::size_t kMessages = 300;
  std::vector<std::byte> data = pattern(20'000, 1);
  struct Side {
    std::vector<TestRequest> sends{kMessages}, receives{kMessages};
    std::vector<std::vector<std::byte>> into{kMessages, std::vector<std::byte>(20'000)};
  };
  Side sides[2];
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      Side& side = sides[rank];
      for (std::size_t i = 0; i < kMessages; ++i) {
        job_[rank].post_send(1 - rank, envelope(i), view(data), side.sends[i]);
        job_[rank].post_receive(1 - rank, envelope(i).key, room(side.into[i]), side.receives[i]);
        job_[rank].progress();
        if (rank == 1 && i == kMessages / 2) hub_->kill(1);
      }
      while (rank == 0 && job_.listener(0).failures.empty()) job_[0].progress();
      job_[rank].close(std::chrono::milliseconds(100));
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Side& side : sides) {
    for (std::size_t i = 0; i < kMessages; ++i) {
      ASSERT_EQ(side.sends[i].calls, 1);
      ASSERT_EQ(side.receives[i].calls, 1);
      ASSERT_TRUE(!side.receives[i].status.is_ok() || side.into[i] == data);
    }
  }
}

TEST(LoopbackHub, RefusesWhatMakesNoSense) {
  EXPECT_THROW(LoopbackHub(0), Error);
  auto hub = std::make_shared<LoopbackHub>(2);
  EXPECT_THROW(make_loopback_transport(hub, 2), Error);
  EXPECT_THROW(hub->kill(-1), Error);
  auto transport = make_loopback_transport(hub, 0);
  TestListener listener;
  EXPECT_THROW(transport->connect(1, {transport->address(), transport->address()}, listener),
               Error);
  TestRequest request;
  EXPECT_THROW(transport->post_send(1, envelope(1), {}, request), Error) << "not connected yet";
}

}  // namespace
}  // namespace tersum::transport::testing
