// What concerns the UCX transport only.
#include "transport/ucx_transport.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "transport/support.hpp"

namespace tersum::transport::testing {
namespace {

TEST(Ucx, TellsItsVersionAndTransports) {
  int major = 0, minor = 0, release = 0;
  ASSERT_EQ(std::sscanf(ucx_version().c_str(), "%d.%d.%d", &major, &minor, &release), 3);
  EXPECT_TRUE(major == 1 && minor >= 13) << ucx_version();
  const auto transports = ucx_transports();
  EXPECT_NE(std::find(transports.begin(), transports.end(), "posix/memory"), transports.end());
  EXPECT_TRUE(std::any_of(transports.begin(), transports.end(),
                          [](const std::string& t) { return t.starts_with("tcp/"); }));
}

TEST(Ucx, TellsWhatItCannotOpen) {
  try {
    make_ucx_transport({.transports = "tcp", .interface = "no_such_interface0"});
    FAIL() << "an interface that does not exist was accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::System);
    EXPECT_NE(error.status().message().find("no_such_interface0"), std::string::npos)
        << error.what();
  }
  EXPECT_THROW(make_ucx_transport({.transports = "no_such_transport", .interface = {}}), Error);
}

TEST(Ucx, KnowsWhetherItCrossesHosts) {
  EXPECT_FALSE(
      make_ucx_transport({.transports = "shm", .interface = {}})->capabilities().crosses_hosts);
  EXPECT_TRUE(
      make_ucx_transport({.transports = "tcp", .interface = {}})->capabilities().crosses_hosts);
}

TEST(Ucx, WorksOverTheLoopbackInterface) {
  Job job({"lo",
           [](int ranks) {
             std::vector<std::unique_ptr<Transport>> made;
             for (int r = 0; r < ranks; ++r) {
               made.push_back(make_ucx_transport({.transports = "tcp", .interface = "lo"}));
             }
             return made;
           }},
          2);
  const auto data = pattern(100'000, 1);
  std::vector<std::byte> into(data.size());
  TestRequest send, receive;
  job[1].post_receive(0, envelope(1).key, room(into), receive);
  job[0].post_send(1, envelope(1), view(data), send);
  ASSERT_TRUE(job.pump([&] { return send.done() && receive.done(); }));
  EXPECT_EQ(into, data);
}

TEST(Ucx, OnlyRanksOfOneHostUseSharedMemory) {
  Job job({"hosts",
           [](int ranks) {
             std::vector<std::unique_ptr<Transport>> made;
             for (int r = 0; r < ranks; ++r)
               made.push_back(make_ucx_transport({.interface = "lo", .host = r < 2 ? "a" : "b"}));
             return made;
           }},
          3);
  const auto data = pattern(1'000'000, 1);
  for (const int to : {1, 2}) {
    std::vector<std::byte> into(data.size());
    TestRequest send, receive;
    job[to].post_receive(0, envelope(1).key, room(into), receive);
    job[0].post_send(to, envelope(1), view(data), send);
    ASSERT_TRUE(job.pump([&] { return send.done() && receive.done(); }));
    EXPECT_EQ(into, data);
  }
  EXPECT_NE(job[0].route(1).find("posix/memory"), std::string::npos) << job[0].route(1);
  EXPECT_EQ(job[0].route(2), "tcp/lo");
  EXPECT_EQ(job[2].route(1), "");  // nothing has travelled there yet
}

TEST(Ucx, UsesCudaOnlyIfToldTo) {
  for (const char* transports : {"auto", "tcp", "shm"})
    EXPECT_FALSE(make_ucx_transport({.transports = transports})->capabilities().device_memory)
        << transports;
  const bool has_cuda = std::ranges::any_of(
      ucx_transports(), [](const std::string& name) { return name.starts_with("cuda"); });
  EXPECT_EQ(make_ucx_transport({.device_memory = true})->capabilities().device_memory, has_cuda);
}

TEST(Ucx, TellsItsLanesBeforeThereAreRanks) {
  const UcxLanes lanes = ucx_lanes({.interface = "lo"});
  EXPECT_NE(lanes.inside_host.find("posix/memory"), std::string::npos) << lanes.inside_host;
  EXPECT_EQ(lanes.between_hosts, "tcp/lo");
  EXPECT_EQ(ucx_lanes({.transports = "shm", .interface = {}}).between_hosts, "");
  EXPECT_EQ(ucx_lanes({.transports = "tcp", .interface = "lo"}).inside_host, "tcp/lo");
  EXPECT_THROW(ucx_lanes({.transports = "no_such_transport", .interface = {}}), Error);
}

TEST(Ucx, RanksThatShareNoTransportFailInsteadOfHanging) {
  std::vector<std::unique_ptr<Transport>> transports;
  transports.push_back(make_ucx_transport({.transports = "shm", .interface = {}}));
  transports.push_back(make_ucx_transport({.transports = "tcp", .interface = {}}));
  std::vector<std::unique_ptr<TestListener>> listeners;
  for (int r = 0; r < 2; ++r) listeners.push_back(std::make_unique<TestListener>());
  connect_all(transports, listeners);
  TestRequest send, receive;
  transports[0]->post_send(1, envelope(1), {}, send);
  transports[0]->post_receive(1, envelope(1).key, {}, receive);
  const auto hang = std::chrono::steady_clock::now() + kHang;
  while (!(send.done() && receive.done()) && std::chrono::steady_clock::now() < hang) {
    transports[0]->progress();
  }
  ASSERT_TRUE(send.done() && receive.done());
  EXPECT_EQ(send.status.code(), Code::PeerLost);
  EXPECT_NE(send.status.message().find("shm"), std::string::npos) << send.status.to_string();
  EXPECT_EQ(listeners[0]->failures.size(), 1u);
}

TEST(Ucx, NeedsConnectFirst) {
  auto transport = make_ucx_transport({.transports = "shm", .interface = {}});
  TestRequest request;
  EXPECT_THROW(transport->post_send(0, envelope(1), {}, request), Error);
  EXPECT_THROW(transport->post_receive(0, envelope(1).key, {}, request), Error);
  EXPECT_THROW(transport->disconnect(0, {Code::Aborted, "no"}), Error);
}

}  // namespace
}  // namespace tersum::transport::testing
