// One message of 1 GiB over every transport.
#include <cstring>
#include <fstream>

#include "transport/support.hpp"

namespace tersum::transport::testing {
namespace {

std::size_t available_bytes() {
  std::ifstream info("/proc/meminfo");
  for (std::string line; std::getline(info, line);) {
    if (line.starts_with("MemAvailable:")) return std::stoull(line.substr(13)) * 1024;
  }
  return 0;
}

class LargeMessage : public ::testing::TestWithParam<Factory> {};
INSTANTIATE_TEST_SUITE_P(All, LargeMessage, ::testing::ValuesIn(all_factories()), factory_name);

TEST_P(LargeMessage, OfOneGibibyteArrivesWhole) {
  constexpr std::size_t kBytes = std::size_t{1} << 30;
  if (available_bytes() < 4 * kBytes) GTEST_SKIP() << "less than 4 GiB of memory are free";
  const auto data = pattern(kBytes, 1);
  std::vector<std::byte> into(kBytes);
  TestRequest send, receive;
  Job job(GetParam(), 2);
  job[1].post_receive(0, envelope(1).key, room(into), receive);
  job[0].post_send(1, envelope(1), view(data), send);
  ASSERT_TRUE(job.pump([&] { return send.done() && receive.done(); }));
  EXPECT_TRUE(receive.status.is_ok()) << receive.status.to_string();
  EXPECT_EQ(receive.bytes, kBytes);
  EXPECT_EQ(std::memcmp(into.data(), data.data(), kBytes), 0);
}

}  // namespace
}  // namespace tersum::transport::testing
