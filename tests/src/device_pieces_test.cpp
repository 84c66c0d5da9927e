// Where streams and the host meet: gates, notices, pinned memory on loan; what calls take where.
#include <gtest/gtest.h>

#include <array>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <utility>
#include <vector>

#include "src/device/pinned_pool.hpp"
#include "src/device/staged_shape.hpp"
#include "src/device/stream_gate.hpp"
#include "src/device/stream_notice.hpp"
#include "src/device_support.hpp"

namespace tersum::test {
namespace {

using runtime::PinnedLease;
using runtime::PinnedPool;
using runtime::StreamGate;

class DevicePieces : public testing::Test {
 protected:
  void SetUp() override {
    if (gpu::devices().empty()) GTEST_SKIP() << "no GPU here";
  }
};

/// Counts what it is told.
class Counter final : public runtime::StreamListener {
 public:
  void on_reached(const Status& status) noexcept override {
    const std::lock_guard lock(mutex_);
    EXPECT_TRUE(status.is_ok());
    ++count_;
    told_.notify_all();
  }
  bool wait_for(int count) {
    std::unique_lock lock(mutex_);
    return told_.wait_for(lock, kHang, [&] { return count_ >= count; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable told_;
  int count_ = 0;
};

TEST_F(DevicePieces, AGateLetsStreamsPassInTheOrderOfTickets) {
  StreamGate gate;
  const gpu::Stream first, second;
  const auto a = gate.take(), b = gate.take();
  gate.hold(first, a);
  gate.hold(second, b);
  EXPECT_FALSE(first.view().is_done());
  gate.open(b);
  EXPECT_FALSE(second.view().is_done());  // a is before it
  gate.open(a);
  first.synchronize();
  second.synchronize();
  gate.hold(first, b);  // has been opened
  first.synchronize();
}

TEST_F(DevicePieces, AGateLetsEverythingPassInTheEnd) {
  const gpu::Stream stream;
  {
    StreamGate gate;
    gate.take();
    gate.hold(stream, gate.take());
    gate.open_all();
    stream.synchronize();
    gate.open(1);  // says nothing new
    const auto later = gate.take();
    gate.hold(stream, later);
    gate.open(later);
    stream.synchronize();
  }
}

TEST_F(DevicePieces, AListenerIsToldWhenTheStreamComesThere) {
  StreamGate gate;
  const gpu::Stream stream;
  Counter counter;
  runtime::notify(stream, counter);
  EXPECT_TRUE(counter.wait_for(1));
  const auto ticket = gate.take();
  gate.hold(stream, ticket);
  runtime::notify(stream, counter);
  EXPECT_FALSE(stream.view().is_done());
  gate.open(ticket);
  EXPECT_TRUE(counter.wait_for(2));
}

TEST_F(DevicePieces, PinnedMemoryIsLentAgain) {
  PinnedPool pool;
  std::byte* data = nullptr;
  {
    PinnedLease lease = pool.acquire(100'000);
    EXPECT_GE(lease.bytes(), 100'000u);
    data = lease.data();
    PinnedLease moved = std::move(lease);
    EXPECT_EQ(moved.data(), data);
    EXPECT_EQ(lease.data(), nullptr);
    EXPECT_NE(pool.acquire(100'000).data(), data);  // that one is out
  }
  EXPECT_EQ(pool.allocations(), 2u);
  for (int i = 0; i < 10; ++i)
    EXPECT_NE(pool.acquire(99'000 + static_cast<std::size_t>(i)).data(), nullptr);
  EXPECT_EQ(pool.allocations(), 2u);
}

TEST_F(DevicePieces, ReservedPinnedMemoryIsThere) {
  PinnedPool pool;
  const std::array<std::size_t, 4> sizes{70'000, 3, 70'000, 1'000'001};
  pool.reserve(sizes);
  std::vector<PinnedLease> leases;
  for (const std::size_t bytes : sizes) {
    leases.push_back(pool.acquire(bytes));
    EXPECT_GE(leases.back().bytes(), bytes);
    std::memset(leases.back().data(), static_cast<int>(leases.size()), leases.back().bytes());
  }
  for (std::size_t i = 0; i < leases.size(); ++i)
    for (std::size_t at : {std::size_t{0}, leases[i].bytes() - 1})
      EXPECT_EQ(leases[i].data()[at], static_cast<std::byte>(i + 1)) << i;
  EXPECT_EQ(pool.allocations(), 0u);
  leases.push_back(pool.acquire(70'000));  // one more than was reserved
  EXPECT_EQ(pool.allocations(), 1u);
  EXPECT_EQ(pool.acquire(0).data(), nullptr);
}

TEST(StagedShape, LeavesOutWhatStaysOnTheRank) {
  runtime::DeviceCall call{.kind = runtime::CallKind::AllToAllV};
  call.send_counts = {3, 50, 0};
  call.receive_counts = {7, 50, 90};
  const runtime::StagedShape shape(call, 1, 3);
  const auto offsets_and_counts = [](const std::vector<runtime::StagedRun>& runs) {
    std::vector<std::pair<std::size_t, std::size_t>> pairs;
    for (const runtime::StagedRun& run : runs) pairs.emplace_back(run.offset, run.count);
    return pairs;
  };
  using Pairs = std::vector<std::pair<std::size_t, std::size_t>>;
  EXPECT_EQ(offsets_and_counts(shape.out), (Pairs{{0, 3}, {3, 0}, {53, 0}}));
  EXPECT_EQ(offsets_and_counts(shape.in), (Pairs{{0, 7}, {7, 0}, {57, 90}}));
  EXPECT_EQ(shape.longest, 90u);
  EXPECT_EQ(shape.most_runs, 3u);
}

TEST(StagedShape, SlicesAreShorterWhereARunEnds) {
  const runtime::StagedRun run{1000, 25};
  EXPECT_EQ(run.part(0, 10), 10u);
  EXPECT_EQ(run.part(20, 10), 5u);
  EXPECT_EQ(run.part(30, 10), 0u);
}

}  // namespace
}  // namespace tersum::test
