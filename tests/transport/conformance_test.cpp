// What every transport promises about messages. Runs over all of them.
#include <algorithm>
#include <atomic>
#include <random>
#include <thread>

#include "transport/support.hpp"

namespace tersum::transport::testing {
namespace {

class Conformance : public ::testing::TestWithParam<Factory> {};
INSTANTIATE_TEST_SUITE_P(All, Conformance, ::testing::ValuesIn(all_factories()), factory_name);

TEST_P(Conformance, DeliversToAReceiveThatIsPostedFirst) {
  Job job(GetParam(), 2);
  const auto data = pattern(1000, 1);
  std::vector<std::byte> into(1000);
  TestRequest send, receive;
  job[1].post_receive(0, envelope(7).key, room(into), receive);
  job.settle();
  EXPECT_FALSE(receive.done());
  job[0].post_send(1, envelope(7), view(data), send);
  EXPECT_FALSE(send.done()) << "completions come from progress() only";
  ASSERT_TRUE(job.pump([&] { return send.done() && receive.done(); }));
  EXPECT_TRUE(send.status.is_ok()) << send.status.to_string();
  EXPECT_TRUE(receive.status.is_ok()) << receive.status.to_string();
  EXPECT_EQ(send.bytes, 1000u);
  EXPECT_EQ(receive.bytes, 1000u);
  EXPECT_EQ(into, data);
}

TEST_P(Conformance, KeepsAMessageUntilItsReceiveIsPosted) {
  Job job(GetParam(), 2);
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{64}, std::size_t{9000},
                                  std::size_t{100'000}, std::size_t{3'000'000}}) {
    SCOPED_TRACE(bytes);
    const auto data = pattern(bytes, bytes);
    std::vector<std::byte> into(bytes);
    TestRequest send, receive;
    const std::size_t heard = job.listener(1).arrivals.size();
    job[0].post_send(1, envelope(bytes), view(data), send);
    ASSERT_TRUE(job.pump([&] { return job.listener(1).arrivals.size() > heard; }));
    job.settle();
    EXPECT_FALSE(receive.done());
    job[1].post_receive(0, envelope(bytes).key, room(into), receive);
    EXPECT_FALSE(receive.done()) << "completions come from progress() only";
    ASSERT_TRUE(job.pump([&] { return send.done() && receive.done(); }));
    EXPECT_TRUE(receive.status.is_ok()) << receive.status.to_string();
    EXPECT_EQ(receive.bytes, bytes);
    EXPECT_EQ(into, data);
  }
}

TEST_P(Conformance, ShowsEachArrivalWithItsEnvelopeBeforeItIsMatched) {
  Job job(GetParam(), 2);
  std::vector<std::byte> into(3);
  TestRequest send, receive;
  bool completed_before_heard = false;
  job.listener(1).verdict = [&](int, const Envelope&) {
    completed_before_heard = receive.done();
    return Listener::Verdict::Keep;
  };
  const auto data = pattern(3, 5);
  const Envelope sent = envelope(11, 12, 13, 14);
  job[1].post_receive(0, sent.key, room(into), receive);
  job[0].post_send(1, sent, view(data), send);
  ASSERT_TRUE(job.pump([&] { return send.done() && receive.done(); }));
  ASSERT_EQ(job.listener(1).arrivals.size(), 1u);
  const auto& heard = job.listener(1).arrivals[0];
  EXPECT_EQ(heard.peer, 0);
  EXPECT_EQ(heard.envelope.key, sent.key);
  EXPECT_EQ(heard.envelope.note, sent.note);
  EXPECT_EQ(heard.bytes, 3u);
  EXPECT_FALSE(completed_before_heard);
  EXPECT_TRUE(job.listener(0).arrivals.empty());
}

TEST_P(Conformance, KeepsTheOrderOfMessagesWithEqualKeys) {
  constexpr int kMessages = 1000;
  Job job(GetParam(), 2);
  std::mt19937_64 random(3);
  std::vector<std::vector<std::byte>> data, into;
  std::vector<TestRequest> sends(kMessages), receives(kMessages);
  for (std::uint64_t i = 0; i < kMessages; ++i) {
    // Small ones and large ones take different ways through a transport, and may overtake there.
    const std::size_t bytes = i % 3 == 0 ? random() % 300'001 : random() % 200;
    data.push_back(pattern(bytes, i));
    into.emplace_back(bytes + 1);
  }
  for (std::size_t i = 0; i < kMessages / 2; ++i) {
    job[1].post_receive(0, envelope(1).key, room(into[i]), receives[i]);
  }
  for (std::size_t i = 0; i < kMessages; ++i) {
    job[0].post_send(1, envelope(1), view(data[i]), sends[i]);
    if (i % 50 == 0) job[1].progress();
  }
  ASSERT_TRUE(job.pump([&] { return receives[kMessages / 2 - 1].done(); }));
  for (std::size_t i = kMessages / 2; i < kMessages; ++i) {
    job[1].post_receive(0, envelope(1).key, room(into[i]), receives[i]);
  }
  ASSERT_TRUE(job.pump([&] {
    return std::all_of(receives.begin(), receives.end(), [](const auto& r) { return r.done(); }) &&
           std::all_of(sends.begin(), sends.end(), [](const auto& s) { return s.done(); });
  }));
  for (std::size_t i = 0; i < kMessages; ++i) {
    ASSERT_EQ(receives[i].calls, 1);
    ASSERT_EQ(sends[i].calls, 1);
    ASSERT_TRUE(receives[i].status.is_ok()) << receives[i].status.to_string();
    ASSERT_EQ(receives[i].bytes, data[i].size()) << i;
    into[i].resize(data[i].size());
    ASSERT_EQ(into[i], data[i]) << i;
  }
}

TEST_P(Conformance, MeetsEachKeyWithItsOwnMessage) {
  Job job(GetParam(), 3);
  // Keys that differ in one field each, from two peers.
  const std::vector<Envelope> keys = {envelope(1, 1, 1, 1), envelope(2, 1, 1, 1),
                                      envelope(1, 2, 1, 1), envelope(1, 1, 2, 1),
                                      envelope(1, 1, 1, 2)};
  std::vector<std::vector<std::byte>> data, into(2 * keys.size(), std::vector<std::byte>(2000));
  std::vector<TestRequest> sends(2 * keys.size()), receives(2 * keys.size());
  for (std::size_t i = 0; i < 2 * keys.size(); ++i) data.push_back(pattern(2000, i));
  for (std::size_t i = 0; i < keys.size(); ++i) {
    job[0].post_send(2, keys[i], view(data[i]), sends[i]);
    job[1].post_send(2, keys[i], view(data[keys.size() + i]), sends[keys.size() + i]);
  }
  for (std::size_t i = 2 * keys.size(); i-- > 0;) {
    job[2].post_receive(i < keys.size() ? 0 : 1, keys[i % keys.size()].key, room(into[i]),
                        receives[i]);
  }
  ASSERT_TRUE(job.pump([&] {
    return std::all_of(receives.begin(), receives.end(), [](const auto& r) { return r.done(); }) &&
           std::all_of(sends.begin(), sends.end(), [](const auto& s) { return s.done(); });
  }));
  for (std::size_t i = 0; i < data.size(); ++i) EXPECT_EQ(into[i], data[i]) << i;
}

TEST_P(Conformance, CarriesEmptyMessages) {
  Job job(GetParam(), 2);
  TestRequest send[2], receive[2];
  std::vector<std::byte> into(10);
  job[1].post_receive(0, envelope(1).key, {}, receive[0]);
  job[0].post_send(1, envelope(1), {}, send[0]);
  job[0].post_send(1, envelope(2), {}, send[1]);
  ASSERT_TRUE(job.pump([&] { return job.listener(1).arrivals.size() == 2; }));
  job[1].post_receive(0, envelope(2).key, room(into), receive[1]);
  ASSERT_TRUE(job.pump(
      [&] { return receive[0].done() && receive[1].done() && send[0].done() && send[1].done(); }));
  EXPECT_TRUE(receive[0].status.is_ok() && receive[1].status.is_ok());
  EXPECT_EQ(receive[0].bytes + receive[1].bytes, 0u);
}

TEST_P(Conformance, AcceptsAShorterMessageThanTheBuffer) {
  Job job(GetParam(), 2);
  for (const std::size_t bytes : {std::size_t{10}, std::size_t{500'000}}) {
    const auto data = pattern(bytes, 1);
    std::vector<std::byte> into(bytes + 5, std::byte{0x55});
    TestRequest send, receive;
    job[1].post_receive(0, envelope(1).key, room(into), receive);
    job[0].post_send(1, envelope(1), view(data), send);
    ASSERT_TRUE(job.pump([&] { return send.done() && receive.done(); }));
    EXPECT_TRUE(receive.status.is_ok());
    EXPECT_EQ(receive.bytes, bytes);
    EXPECT_TRUE(std::equal(data.begin(), data.end(), into.begin()));
    for (std::size_t i = bytes; i < into.size(); ++i) EXPECT_EQ(into[i], std::byte{0x55});
  }
}

TEST_P(Conformance, EndsAReceiveThatIsTooShortWithMismatchAndGoesOn) {
  Job job(GetParam(), 2);
  for (const std::size_t bytes : {std::size_t{100}, std::size_t{20'000}, std::size_t{900'000}}) {
    for (const bool receive_first : {true, false}) {
      SCOPED_TRACE(bytes);
      const auto data = pattern(bytes, 1);
      std::vector<std::byte> into(bytes - 1, std::byte{0x77}), next(bytes);
      TestRequest sends[2], receives[2];
      const std::size_t heard = job.listener(1).arrivals.size();
      if (receive_first) job[1].post_receive(0, envelope(1).key, room(into), receives[0]);
      job[0].post_send(1, envelope(1), view(data), sends[0]);
      job[0].post_send(1, envelope(1), view(data), sends[1]);
      ASSERT_TRUE(job.pump([&] { return job.listener(1).arrivals.size() == heard + 2; }));
      if (!receive_first) job[1].post_receive(0, envelope(1).key, room(into), receives[0]);
      job[1].post_receive(0, envelope(1).key, room(next), receives[1]);
      ASSERT_TRUE(job.pump([&] {
        return sends[0].done() && sends[1].done() && receives[0].done() && receives[1].done();
      }));
      EXPECT_EQ(receives[0].status.code(), Code::Mismatch);
      EXPECT_NE(receives[0].status.message().find(std::to_string(bytes)), std::string::npos);
      EXPECT_EQ(std::count(into.begin(), into.end(), std::byte{0x77}),
                static_cast<std::ptrdiff_t>(into.size()));
      EXPECT_TRUE(sends[0].status.is_ok()) << "the dropped message's sender completes";
      EXPECT_TRUE(receives[1].status.is_ok());
      EXPECT_EQ(next, data);
    }
  }
  EXPECT_TRUE(job.listener(0).failures.empty());
  EXPECT_TRUE(job.listener(1).failures.empty());
}

TEST_P(Conformance, CancelsAReceiveThatNothingHasMet) {
  Job job(GetParam(), 2);
  std::vector<std::byte> first(10), second(10);
  TestRequest cancelled, receive, send;
  job[1].post_receive(0, envelope(1).key, room(first), cancelled);
  job[1].post_receive(0, envelope(1).key, room(second), receive);
  job[1].cancel(cancelled);
  EXPECT_FALSE(cancelled.done());
  ASSERT_TRUE(job.pump([&] { return cancelled.done(); }));
  EXPECT_EQ(cancelled.status.code(), Code::Aborted);
  const auto data = pattern(10, 9);
  job[0].post_send(1, envelope(1), view(data), send);
  ASSERT_TRUE(job.pump([&] { return receive.done() && send.done(); }));
  EXPECT_EQ(second, data) << "the message goes to the receive that is left";
  EXPECT_EQ(cancelled.calls, 1);
  job[1].cancel(receive);  // ended long ago: nothing happens
  job.settle();
  EXPECT_EQ(receive.calls, 1);
}

TEST_P(Conformance, DropsWhatTheListenerDoesNotWantAndFreesItsSender) {
  Job job(GetParam(), 2);
  job.listener(1).verdict = [](int, const Envelope& e) {
    return e.key.operation == 1 ? Listener::Verdict::Drop : Listener::Verdict::Keep;
  };
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{100}, std::size_t{5'000'000}}) {
    SCOPED_TRACE(bytes);
    const auto data = pattern(bytes, 1);
    std::vector<std::byte> into(bytes);
    TestRequest unwanted, wanted, never, receive;
    job[1].post_receive(0, envelope(1).key, room(into), never);
    job[1].post_receive(0, envelope(2).key, room(into), receive);
    job[0].post_send(1, envelope(1), view(data), unwanted);
    job[0].post_send(1, envelope(2), view(data), wanted);
    ASSERT_TRUE(job.pump([&] { return unwanted.done() && wanted.done() && receive.done(); }));
    EXPECT_TRUE(unwanted.status.is_ok()) << unwanted.status.to_string();
    EXPECT_EQ(into, data);
    EXPECT_FALSE(never.done()) << "a dropped message meets no receive";
    job[1].cancel(never);
    ASSERT_TRUE(job.pump([&] { return never.done(); }));
  }
}

TEST_P(Conformance, DropsTheKeptMessagesOfOneOperation) {
  Job job(GetParam(), 2);
  const auto data = pattern(2'000'000, 1);
  TestRequest sends[4], receives[2];
  job[0].post_send(1, envelope(1, 0, 0, 1), view(data), sends[0]);
  job[0].post_send(1, envelope(1, 5, 6, 1), view(data), sends[1]);
  job[0].post_send(1, envelope(1, 0, 0, 2), view(data), sends[2]);  // another communicator
  job[0].post_send(1, envelope(2, 0, 0, 1), view(data), sends[3]);  // another operation
  ASSERT_TRUE(job.pump([&] { return job.listener(1).arrivals.size() == 4; }));
  job[1].drop(1, 1);
  ASSERT_TRUE(job.pump([&] { return sends[0].done() && sends[1].done(); }));
  EXPECT_TRUE(sends[0].status.is_ok() && sends[1].status.is_ok());
  std::vector<std::byte> into(data.size()), other(data.size()), none(data.size());
  TestRequest nothing;
  job[1].post_receive(0, envelope(1, 0, 0, 1).key, room(none), nothing);
  job[1].post_receive(0, envelope(1, 0, 0, 2).key, room(into), receives[0]);
  job[1].post_receive(0, envelope(2, 0, 0, 1).key, room(other), receives[1]);
  ASSERT_TRUE(job.pump([&] {
    return receives[0].done() && receives[1].done() && sends[2].done() && sends[3].done();
  }));
  EXPECT_EQ(into, data);
  EXPECT_EQ(other, data);
  EXPECT_FALSE(nothing.done());
  job[1].cancel(nothing);
  ASSERT_TRUE(job.pump([&] { return nothing.done(); }));
}

TEST_P(Conformance, LetsARankSendToItself) {
  Job job(GetParam(), 2);
  const auto data = pattern(70'000, 1), more = pattern(10, 2);
  std::vector<std::byte> into(70'000), rest(10);
  TestRequest sends[2], receives[2];
  job[0].post_receive(0, envelope(1).key, room(into), receives[0]);
  job[0].post_send(0, envelope(1), view(data), sends[0]);
  job[0].post_send(0, envelope(1), view(more), sends[1]);
  EXPECT_TRUE(job.listener(0).arrivals.empty()) << "the listener is called from progress() only";
  ASSERT_TRUE(job.pump([&] { return receives[0].done() && sends[0].done(); }));
  ASSERT_TRUE(job.pump([&] { return job.listener(0).arrivals.size() == 2; }));
  EXPECT_EQ(job.listener(0).arrivals[1].peer, 0);
  EXPECT_EQ(into, data);
  job[0].post_receive(0, envelope(1).key, room(rest), receives[1]);
  ASSERT_TRUE(job.pump([&] { return receives[1].done() && sends[1].done(); }));
  EXPECT_EQ(rest, more);
}

TEST_P(Conformance, LosesNothingWhenAPeerIsSlow) {
  constexpr std::size_t kMessages = 200;
  Job job(GetParam(), 2);
  std::vector<std::vector<std::byte>> data, into;
  std::vector<TestRequest> sends(kMessages), receives(kMessages);
  for (std::size_t i = 0; i < kMessages; ++i) {
    data.push_back(pattern(i * 997 % 60'000, i));
    into.emplace_back(data[i].size());
    job[0].post_send(1, envelope(i), view(data[i]), sends[i]);
    job[0].progress();
  }
  for (int i = 0; i < 20'000; ++i) job[0].progress();  // rank 1 does not look
  EXPECT_TRUE(job.listener(1).arrivals.empty());
  for (std::size_t i = 0; i < kMessages; ++i) {
    job[1].post_receive(0, envelope(i).key, room(into[i]), receives[i]);
  }
  ASSERT_TRUE(job.pump([&] {
    return std::all_of(receives.begin(), receives.end(), [](const auto& r) { return r.done(); }) &&
           std::all_of(sends.begin(), sends.end(), [](const auto& s) { return s.done(); });
  }));
  for (std::size_t i = 0; i < kMessages; ++i) ASSERT_EQ(into[i], data[i]) << i;
  EXPECT_TRUE(job.listener(0).failures.empty());
}

TEST_P(Conformance, LetsCallbacksPost) {
  Job job(GetParam(), 2);
  struct Echo : TestRequest {
    std::function<void()> then;
    void on_complete(const Status& how, std::size_t count) override {
      TestRequest::on_complete(how, count);
      if (then) then();
    }
  };
  const auto data = pattern(50'000, 4);
  std::vector<std::byte> there(50'000), back(50'000);
  TestRequest send, reply, receive;
  Echo echo;
  TestRequest early;
  std::vector<std::byte> none;
  echo.then = [&] { job[1].post_send(0, envelope(2), view(there), reply); };
  job.listener(1).verdict = [&](int, const Envelope& e) {
    if (e.key.operation == 1) job[1].post_receive(0, e.key, room(there), echo);
    if (e.key.operation == 1) job[1].post_send(0, envelope(3), view(none), early);
    return Listener::Verdict::Keep;
  };
  job[0].post_receive(1, envelope(2).key, room(back), receive);
  TestRequest signal;
  job[0].post_receive(1, envelope(3).key, {}, signal);
  job[0].post_send(1, envelope(1), view(data), send);
  ASSERT_TRUE(job.pump([&] {
    return send.done() && early.done() && receive.done() && reply.done() && signal.done();
  }));
  EXPECT_EQ(back, data);
}

TEST_P(Conformance, RefusesWhatMakesNoSense) {
  Job job(GetParam(), 2);
  TestRequest request;
  EXPECT_THROW(job[0].post_send(2, envelope(1), {}, request), Error);
  EXPECT_THROW(job[0].post_receive(-1, envelope(1).key, {}, request), Error);
  EXPECT_FALSE(request.done());
  if (!job[0].capabilities().device_memory) {
    TestRequest send, receive;
    std::byte byte{};
    job[0].post_send(1, envelope(1), {&byte, 1, MemoryType::Cuda}, send);
    job[0].post_receive(1, envelope(1).key, {&byte, 1, MemoryType::Cuda}, receive);
    ASSERT_TRUE(job.pump([&] { return send.done() && receive.done(); }));
    EXPECT_EQ(send.status.code(), Code::Unsupported);
    EXPECT_EQ(receive.status.code(), Code::Unsupported);
  }
}

/// One rank of the storm: sends a random number of random messages to everybody, itself included,
/// and receives all that the others (by the same seeds) send.
void storm_rank(Transport& transport, int rank, int ranks, ::testing::AssertionResult& result) {
  constexpr std::uint64_t kMessages = 40;
  const auto size_of = [](int from, int to, std::uint64_t i) {
    std::mt19937_64 random(static_cast<std::uint64_t>(from * 100 + to) * 1000 + i);
    return static_cast<std::size_t>(i % 4 == 0 ? random() % 150'000 : random() % 2'000);
  };
  const auto seed_of = [](int from, int to, std::uint64_t i) {
    return static_cast<std::uint64_t>(from) * 1'000'000 + static_cast<std::uint64_t>(to) * 1000 + i;
  };
  std::vector<std::vector<std::byte>> data, into, expected;
  const std::size_t count = static_cast<std::size_t>(ranks) * kMessages;
  std::vector<TestRequest> sends(count), receives(count);
  for (std::uint64_t i = 0; i < kMessages; ++i) {
    for (int peer = 0; peer < ranks; ++peer) {
      data.push_back(pattern(size_of(rank, peer, i), seed_of(rank, peer, i)));
      expected.push_back(pattern(size_of(peer, rank, i), seed_of(peer, rank, i)));
      into.emplace_back(expected.back().size());
    }
  }
  std::mt19937_64 random(static_cast<std::uint64_t>(rank));
  std::size_t sent = 0, posted = 0;
  const auto hang = std::chrono::steady_clock::now() + kHang;
  const auto pending = [](const TestRequest& r) { return !r.done(); };
  while (sent < count || posted < count || std::any_of(sends.begin(), sends.end(), pending) ||
         std::any_of(receives.begin(), receives.end(), pending)) {
    // Sends and receives in a random mixture; keys repeat in every fourth message.
    if (sent < count && random() % 2 == 0) {
      transport.post_send(static_cast<int>(sent) % ranks,
                          envelope(sent / static_cast<std::size_t>(ranks) / 4), view(data[sent]),
                          sends[sent]);
      ++sent;
    }
    if (posted < count && random() % 2 == 0) {
      transport.post_receive(static_cast<int>(posted) % ranks,
                             envelope(posted / static_cast<std::size_t>(ranks) / 4).key,
                             room(into[posted]), receives[posted]);
      ++posted;
    }
    if (!transport.progress()) std::this_thread::yield();
    if (std::chrono::steady_clock::now() > hang) {
      result = ::testing::AssertionFailure() << "rank " << rank << " does not end";
      return;
    }
  }
  for (std::size_t i = 0; i < count; ++i) {
    if (!sends[i].status.is_ok() || !receives[i].status.is_ok() || into[i] != expected[i]) {
      result = ::testing::AssertionFailure()
               << "rank " << rank << ", message " << i << ": " << receives[i].status.to_string();
      return;
    }
  }
}

TEST_P(Conformance, WithstandsAStormOfEightRanksInThreads) {
  constexpr int kRanks = 8;
  auto transports = GetParam().make(kRanks);
  std::vector<std::unique_ptr<TestListener>> listeners;
  for (int r = 0; r < kRanks; ++r) listeners.push_back(std::make_unique<TestListener>());
  connect_all(transports, listeners);
  std::vector<::testing::AssertionResult> results(kRanks, ::testing::AssertionSuccess());
  std::atomic<int> finished = 0;
  std::vector<std::thread> threads;
  for (int r = 0; r < kRanks; ++r) {
    threads.emplace_back([&, r] {
      const auto i = static_cast<std::size_t>(r);
      storm_rank(*transports[i], r, kRanks, results[i]);
      ++finished;
      // Others may still need this rank to move.
      while (finished < kRanks) {
        if (!transports[i]->progress()) std::this_thread::yield();
      }
      transports[i]->close(std::chrono::seconds(5));
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& result : results) EXPECT_TRUE(result);
  for (const auto& listener : listeners) EXPECT_TRUE(listener->failures.empty());
}

}  // namespace
}  // namespace tersum::transport::testing
