// The join: who gets in, who does not, and what everybody is told.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <deque>
#include <future>

#include "control_support.hpp"

namespace tersum::transport::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

/// Ranks that join in threads of their own.
class Joining {
 public:
  TestRank& add(JoinRequest request) {
    ranks_.push_back(std::make_unique<TestRank>(std::move(request)));
    TestRank& rank = *ranks_.back();
    threads_.emplace_back([&rank] { rank.join(); });
    return rank;
  }
  void wait() {
    for (std::thread& thread : threads_) {
      if (thread.joinable()) thread.join();
    }
  }
  ~Joining() { wait(); }
  const auto& ranks() const { return ranks_; }

 private:
  std::vector<std::unique_ptr<TestRank>> ranks_;
  std::vector<std::thread> threads_;
};

Status join_status(JoinRequest request) {
  TestRank rank(std::move(request));
  rank.join();
  return rank.join_error.value_or(Status{});
}

class JoinOf : public ::testing::TestWithParam<int> {};

TEST_P(JoinOf, AllRanksGetTheSameTable) {
  const int size = GetParam();
  FreePort port;
  auto ranks = make_ranks(size, port.port());
  run_ranks(ranks, [](TestRank& rank) { rank.join(); });
  for (const auto& rank : ranks) {
    ASSERT_TRUE(rank->plane) << rank->join_error->to_string();
    const auto& members = rank->plane->members();
    ASSERT_EQ(members.size(), static_cast<std::size_t>(size));
    for (int other = 0; other < size; ++other) {
      const auto expected = request_of(other, size, 0);
      EXPECT_EQ(members[static_cast<std::size_t>(other)].host_id, expected.host_id);
      EXPECT_EQ(members[static_cast<std::size_t>(other)].address, expected.address);
    }
  }
  for (auto& rank : ranks) rank->plane.reset();
}
INSTANTIATE_TEST_SUITE_P(Ranks, JoinOf, ::testing::Values(1, 2, 8, 64));

TEST(Join, OfOneRankNeedsNoAddress) {
  JoinRequest request = request_of(0, 1, 0);
  request.root_host.clear();
  EXPECT_TRUE(join_status(request).is_ok());
}

TEST(Join, WaitsForARankZeroThatComesLateAndForOneThatHangsUp) {
  FreePort port;
  Joining joining;
  {
    boost::asio::io_context context;
    auto acceptor = RawPeer::listen(context, port.port());
    joining.add(request_of(1, 2, port.port()));
    RawPeer first;
    first.accept_from(acceptor);  // closed without a word
  }
  joining.add(request_of(0, 2, port.port()));
  joining.wait();
  for (const auto& rank : joining.ranks()) EXPECT_TRUE(rank->plane);
}

TEST(Join, WorksOverIpv6AndHostNamesAndAChosenInterface) {
  boost::asio::io_context context;
  tcp::acceptor probe(context);
  boost::system::error_code error;
  probe.open(tcp::v6(), error);
  if (!error) probe.bind({boost::asio::ip::make_address("::1"), 0}, error);
  std::vector<std::string> hosts = {"localhost"};
  if (!error) hosts.push_back("::1");
  probe.close(error);
  for (const std::string& host : hosts) {
    FreePort port;
    for (const char* interface : {"", "lo"}) {
      auto ranks = make_ranks(3, port.port());
      for (auto& rank : ranks) {
        rank->request.root_host = host;
        rank->request.interface = interface;
      }
      run_ranks(ranks, [](TestRank& rank) { rank.join(); });
      for (auto& rank : ranks) {
        EXPECT_TRUE(rank->plane) << host << ": " << rank->join_error->to_string();
      }
      for (auto& rank : ranks) rank->plane.reset();
    }
  }
}

TEST(Join, NamesAnInterfaceThatDoesNotExist) {
  FreePort port;
  JoinRequest request = request_of(0, 2, port.port());
  request.interface = "nosuch0";
  const Status status = join_status(request);
  EXPECT_EQ(status.code(), Code::InvalidArgument);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("nosuch0"), HasSubstr("lo")));
}

/// A job of three whose last rank comes after `intruder` has got its answer. Returns the answer.
Status job_with_intruder(const std::function<void(JoinRequest&)>& spoil) {
  FreePort port;
  Joining joining;
  joining.add(request_of(0, 3, port.port()));
  joining.add(request_of(1, 3, port.port()));
  JoinRequest wrong = request_of(2, 3, port.port());
  spoil(wrong);
  const Status refused = join_status(wrong);
  joining.add(request_of(2, 3, port.port()));
  joining.wait();
  for (const auto& rank : joining.ranks()) {
    EXPECT_TRUE(rank->plane) << rank->join_error->to_string();
  }
  return refused;
}

TEST(Join, RefusesAWrongSecretWhileTheJobCompletes) {
  const Status status = job_with_intruder([](JoinRequest& r) { r.secret = "another"; });
  EXPECT_EQ(status.code(), Code::Protocol);
  EXPECT_THAT(status.message(), HasSubstr("wrong secret: check TERSUM_SECRET"));
}

TEST(Join, RefusesAnEmptySecretWhereOneIsSet) {
  EXPECT_THAT(job_with_intruder([](JoinRequest& r) { r.secret.clear(); }).message(),
              HasSubstr("wrong secret"));
}

TEST(Join, RefusesAnotherJob) {
  const Status status = job_with_intruder([](JoinRequest& r) { r.job = "other"; });
  EXPECT_EQ(status.code(), Code::Protocol);
  EXPECT_THAT(status.message(), HasSubstr("wrong job: check TERSUM_JOB"));
}

TEST(Join, TellsEveryRankThatTheSizesDiffer) {
  FreePort port;
  auto ranks = make_ranks(3, port.port());
  ranks[2]->request.size = 5;
  run_ranks(ranks, [](TestRank& rank) { EXPECT_FALSE(rank.join()); });
  for (const auto& rank : ranks) {
    EXPECT_EQ(rank->join_error->code(), Code::Mismatch);
    EXPECT_THAT(rank->join_error->message(),
                HasSubstr("TERSUM_SIZE differs: rank 0 has 3, rank 2 has 5"));
  }
}

TEST(Join, WorksWithoutASecret) {
  FreePort port;
  auto ranks = make_ranks(2, port.port());
  for (auto& rank : ranks) rank->request.secret.clear();
  run_ranks(ranks, [](TestRank& rank) { EXPECT_TRUE(rank.join()); });
}

TEST(Join, RefusesOneOfTwoProcessesWithTheSameRank) {
  FreePort port;
  Joining joining;
  joining.add(request_of(0, 3, port.port()));
  std::promise<Status> refused;
  std::atomic<int> joined{0};
  std::vector<std::thread> twins;
  for (int i = 0; i < 2; ++i) {
    twins.emplace_back([&] {
      TestRank twin(request_of(1, 3, port.port()));
      if (twin.join()) {
        ++joined;
      } else {
        refused.set_value(*twin.join_error);
      }
    });
  }
  const Status status = refused.get_future().get();
  EXPECT_EQ(status.code(), Code::Protocol);
  EXPECT_THAT(status.message(), HasSubstr("rank 1 has joined already"));
  joining.add(request_of(2, 3, port.port()));
  for (std::thread& twin : twins) twin.join();
  joining.wait();
  EXPECT_EQ(joined, 1);
  for (const auto& rank : joining.ranks()) EXPECT_TRUE(rank->plane);
}

TEST(Join, RefusesARankOutOfRange) {
  FreePort port;
  Joining joining;
  joining.add(request_of(0, 2, port.port()));
  for (const int wrong : {-1, 0, 2, 1'000'000}) {
    RawPeer peer;
    peer.connect(port.port());
    JoinRequest request = request_of(1, 2, port.port());
    request.rank = wrong;
    EXPECT_FALSE(peer.hello(request));
    ASSERT_TRUE(peer.answer());
    ASSERT_EQ(peer.answer()->type, control::FrameType::Verdict);
    EXPECT_THAT(control::decode_status(peer.answer()->body).message(), HasSubstr("out of range"));
    EXPECT_TRUE(peer.closed_by_peer());
  }
  joining.add(request_of(1, 2, port.port()));
  joining.wait();
  for (const auto& rank : joining.ranks()) EXPECT_TRUE(rank->plane);
}

TEST(Join, RefusesAHelloThatWasOverheard) {
  FreePort port;
  Joining joining;
  joining.add(request_of(0, 3, port.port()));
  RawPeer honest;
  honest.connect(port.port());
  ASSERT_TRUE(honest.hello(request_of(1, 3, port.port())));
  RawPeer thief;
  thief.connect(port.port());
  ASSERT_TRUE(thief.receive());
  thief.send(control::FrameType::Hello, honest.hello_body());
  const auto answer = thief.receive();
  ASSERT_TRUE(answer);
  ASSERT_EQ(answer->type, control::FrameType::Refused);
  EXPECT_EQ(control::decode_refusal(answer->body), control::Refusal::Secret);
  joining.add(request_of(2, 3, port.port()));
  joining.wait();
  for (const auto& rank : joining.ranks()) EXPECT_TRUE(rank->plane);
}

TEST(Join, IsNotDisturbedByManyStrangers) {
  FreePort port;
  Joining joining;
  joining.add(request_of(0, 2, port.port()));
  std::deque<RawPeer> silent(300);  // more than rank 0 keeps
  for (RawPeer& peer : silent) peer.connect(port.port());
  const std::string oversized("\xff\xff\xff\x7f\x02hello", 10);
  const std::string malformed("\x05\0\0\0\x02\x01\0hi", 9);
  const std::string early("\x11\0\0\0\x13", 5);
  for (const std::string& nonsense : {std::string("GET / HTTP/1.1\r\n\r\n"), oversized, malformed,
                                      early + std::string(16, 'x'), std::string("\0\0\0\0", 4)}) {
    for (int i = 0; i < 20; ++i) {
      RawPeer peer;
      peer.connect(port.port());
      peer.send_raw(nonsense);
      EXPECT_TRUE(peer.closed_by_peer());
    }
  }
  joining.add(request_of(1, 2, port.port()));
  joining.wait();
  for (const auto& rank : joining.ranks()) EXPECT_TRUE(rank->plane);
}

TEST(Join, HangsUpOnSilentConnections) {
  FreePort port;
  Joining joining;
  joining.add(request_of(0, 2, port.port()));
  RawPeer silent;
  silent.connect(port.port());
  RawPeer slow;
  slow.connect(port.port());
  slow.send_raw(std::string("\x20\0\0\0\x02\x01", 6));  // a hello that never goes on
  EXPECT_TRUE(silent.closed_by_peer());
  EXPECT_TRUE(slow.closed_by_peer());
  joining.add(request_of(1, 2, port.port()));
  joining.wait();
  for (const auto& rank : joining.ranks()) EXPECT_TRUE(rank->plane);
}

TEST(Join, TellsEveryRankWhichSettingsDiffer) {
  FreePort port;
  auto ranks = make_ranks(4, port.port());
  for (auto& rank : ranks) {
    rank->request.settings = "TERSUM_COMPRESSOR=topk:ratio=0.01\nTERSUM_SEED=0\n";
  }
  ranks[2]->request.settings = "TERSUM_COMPRESSOR=none\nTERSUM_SEED=0\nTERSUM_NEW=1\n";
  run_ranks(ranks, [](TestRank& rank) { rank.join(); });
  for (const auto& rank : ranks) {
    ASSERT_TRUE(rank->join_error);
    EXPECT_EQ(rank->join_error->code(), Code::Mismatch);
    EXPECT_THAT(
        rank->join_error->message(),
        HasSubstr("TERSUM_COMPRESSOR differs: rank 0 has 'topk:ratio=0.01', rank 2 has 'none'"));
    EXPECT_THAT(rank->join_error->message(),
                HasSubstr("TERSUM_NEW differs: rank 0 does not know it, rank 2 has '1'"));
    EXPECT_THAT(rank->join_error->message(), ::testing::Not(HasSubstr("TERSUM_SEED")));
  }
}

TEST(Join, TellsEverybodyWhoIsMissing) {
  FreePort port;
  Joining joining;
  for (const int rank : {0, 1}) {
    JoinRequest request = request_of(rank, 4, port.port());
    request.join_timeout = 300ms;
    joining.add(request);
  }
  joining.wait();
  for (const auto& rank : joining.ranks()) {
    ASSERT_TRUE(rank->join_error);
    EXPECT_EQ(rank->join_error->code(), Code::Timeout);
    EXPECT_THAT(rank->join_error->message(),
                AllOf(HasSubstr("ranks 2, 3 of 4 have not joined within"),
                      HasSubstr("127.0.0.1:" + std::to_string(port.port()))));
  }
}

TEST(Join, EndsWhenTheMostImpatientRankGivesUp) {
  FreePort port;
  Joining joining;
  joining.add(request_of(0, 3, port.port()));
  JoinRequest impatient = request_of(1, 3, port.port());
  impatient.join_timeout = 200ms;
  joining.add(impatient);
  joining.wait();
  for (const auto& rank : joining.ranks()) {
    ASSERT_TRUE(rank->join_error);
    EXPECT_EQ(rank->join_error->code(), Code::Timeout);
    EXPECT_THAT(rank->join_error->message(), HasSubstr("rank 2 of 3 has not joined"));
    EXPECT_EQ(rank->join_error->rank(), 2);
  }
}

TEST(Join, NamesAnAddressThatCannotBeReachedAndWhy) {
  FreePort port;
  JoinRequest request = request_of(1, 2, port.port());
  request.join_timeout = 200ms;
  const Status status = join_status(request);
  EXPECT_EQ(status.code(), Code::Timeout);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("127.0.0.1:" + std::to_string(port.port())),
                                      HasSubstr("Connection refused")));
}

TEST(Join, NamesAPortThatIsTaken) {
  FreePort port;
  boost::asio::io_context context;
  const auto other = RawPeer::listen(context, port.port());
  const Status status = join_status(request_of(0, 2, port.port()));
  EXPECT_EQ(status.code(), Code::System);
  EXPECT_THAT(status.message(), AllOf(HasSubstr(std::to_string(port.port())), HasSubstr("taken"),
                                      HasSubstr("TERSUM_ROOT")));
}

TEST(Join, NamesAnAddressThatIsNotOfThisHost) {
  JoinRequest request = request_of(0, 2, 29500);
  request.root_host = "198.51.100.1";  // reserved for documentation
  const Status status = join_status(request);
  EXPECT_EQ(status.code(), Code::System);
  EXPECT_THAT(status.message(), HasSubstr("198.51.100.1:29500"));
}

/// What a rank says when rank 0's address is answered by `server`.
Status join_with_server(const std::function<void(RawPeer&)>& server,
                        std::optional<std::chrono::nanoseconds>* offset = nullptr) {
  FreePort port;
  boost::asio::io_context context;
  auto acceptor = RawPeer::listen(context, port.port());
  TestRank rank(request_of(1, 2, port.port()));
  std::thread thread([&] { rank.join(); });
  RawPeer peer;
  peer.accept_from(acceptor);
  server(peer);
  thread.join();
  if (offset && rank.plane) *offset = rank.plane->clock_offset();
  peer.close();
  return rank.join_error.value_or(Status{});
}

TEST(Join, RecognisesAForeignServer) {
  const Status status =
      join_with_server([](RawPeer& peer) { peer.send_raw("SSH-2.0-OpenSSH_9.2\r\n"); });
  EXPECT_EQ(status.code(), Code::Protocol);
  EXPECT_THAT(status.message(), HasSubstr("not rank 0 of a Tersum job: check TERSUM_ROOT"));
}

TEST(Join, RecognisesAnotherVersion) {
  const Status status = join_with_server([](RawPeer& peer) {
    control::Greeting greeting;
    greeting.version = control::kProtocolVersion + 1;
    peer.send(control::FrameType::Greeting, control::encode(greeting));
  });
  EXPECT_EQ(status.code(), Code::Mismatch);
  EXPECT_THAT(status.message(), HasSubstr("version"));
}

TEST(Join, DoesNotTrustARankZeroThatDoesNotKnowTheSecret) {
  const Status status = join_with_server([](RawPeer& peer) {
    peer.send(control::FrameType::Greeting, control::encode(control::Greeting{}));
    ASSERT_TRUE(peer.receive());
    peer.seal(control::Digest{}, true);
    peer.send(control::FrameType::Accepted, control::encode(control::Accepted{}));
  });
  EXPECT_EQ(status.code(), Code::Protocol);
  EXPECT_THAT(status.message(), HasSubstr("wrong seal"));
}

TEST(Join, MeasuresTheOffsetOfRankZerosClock) {
  constexpr std::chrono::hours kShift{1000};
  std::optional<std::chrono::nanoseconds> offset;
  const Status status = join_with_server(
      [&](RawPeer& peer) {
        const control::Greeting greeting{control::kProtocolVersion, control::random_nonce()};
        peer.send(control::FrameType::Greeting, control::encode(greeting));
        const auto frame = peer.receive();
        ASSERT_TRUE(frame);
        const auto hello = control::decode_hello(frame->body);
        const auto key = control::join_key("a secret of the test", "test");
        ASSERT_TRUE(control::is_authentic(frame->body, key, greeting.nonce));
        peer.seal(control::session_key(key, greeting.nonce, hello.nonce), true);
        const std::chrono::nanoseconds now = std::chrono::steady_clock::now().time_since_epoch();
        peer.send(control::FrameType::Accepted,
                  control::encode(control::Accepted{(now + kShift).count()}));
        peer.send(control::FrameType::Table,
                  control::encode(std::vector<Member>{{"a", {}}, hello.member}));
      },
      &offset);
  ASSERT_TRUE(status.is_ok()) << status.to_string();
  ASSERT_TRUE(offset);
  // The bound is the round trip of a busy machine, not the accuracy of a quiet one.
  EXPECT_LT(std::chrono::abs(*offset - kShift), 10s);
  std::cout << "offset error: " << std::chrono::nanoseconds(*offset - kShift).count() << " ns\n";
}

TEST(Join, EndsEverywhereWhenARankDiesMeanwhile) {
  FreePort port;
  Joining joining;
  joining.add(request_of(0, 4, port.port()));
  RawPeer dying;
  dying.connect(port.port());
  ASSERT_TRUE(dying.hello(request_of(2, 4, port.port())));
  joining.add(request_of(1, 4, port.port()));
  dying.close();
  joining.add(request_of(3, 4, port.port()));
  joining.wait();
  EXPECT_EQ(joining.ranks()[0]->join_error->code(), Code::PeerLost);
  for (const auto& rank : joining.ranks()) {
    ASSERT_TRUE(rank->join_error);
    if (rank->join_error->code() != Code::PeerLost) continue;
    EXPECT_EQ(rank->join_error->rank(), 2);
    EXPECT_THAT(rank->join_error->message(), HasSubstr("rank 2 died (connection closed)"));
  }
}

TEST(Join, TellsItsRanksWhenRankZeroDiesMeanwhile) {
  const Status status = join_with_server([](RawPeer& peer) {
    const control::Greeting greeting;
    peer.send(control::FrameType::Greeting, control::encode(greeting));
    const auto frame = peer.receive();
    ASSERT_TRUE(frame);
    const auto key = control::join_key("a secret of the test", "test");
    peer.seal(control::session_key(key, greeting.nonce, control::decode_hello(frame->body).nonce),
              true);
    peer.send(control::FrameType::Accepted, control::encode(control::Accepted{}));
    peer.close();
  });
  EXPECT_EQ(status.code(), Code::PeerLost);
  EXPECT_EQ(status.rank(), 0);
}

TEST(Join, LeavesTheContextUsableAfterAFailure) {
  FreePort port;
  TestRank rank(request_of(1, 2, port.port()));
  rank.request.join_timeout = 50ms;
  EXPECT_FALSE(rank.join());
  Joining joining;
  joining.add(request_of(0, 2, port.port()));
  rank.request.join_timeout = kPatience;
  EXPECT_TRUE(rank.join());
}

TEST(Join, ChecksItsRequest) {
  const auto message = [](const std::function<void(JoinRequest&)>& spoil) {
    JoinRequest request = request_of(1, 2, 29500);
    spoil(request);
    const Status status = join_status(request);
    EXPECT_EQ(status.code(), Code::InvalidArgument);
    return status.message();
  };
  EXPECT_THAT(message([](JoinRequest& r) { r.rank = 2; }), HasSubstr("TERSUM_RANK"));
  EXPECT_THAT(message([](JoinRequest& r) { r.rank = -1; }), HasSubstr("TERSUM_RANK"));
  EXPECT_THAT(message([](JoinRequest& r) { r.size = 0; }), HasSubstr("ranks"));
  EXPECT_THAT(message([](JoinRequest& r) { r.root_host.clear(); }), HasSubstr("TERSUM_ROOT"));
  EXPECT_THAT(message([](JoinRequest& r) { r.root_port = 0; }), HasSubstr("TERSUM_ROOT"));
  EXPECT_THAT(message([](JoinRequest& r) { r.job.assign(2000, 'j'); }), HasSubstr("TERSUM_JOB"));
  EXPECT_THAT(message([](JoinRequest& r) { r.address.resize(100'000); }), HasSubstr("address"));
}

}  // namespace
}  // namespace tersum::transport::testing
