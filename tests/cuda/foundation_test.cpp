// Errors, streams, events, buffers and the pool.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <future>
#include <optional>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "cuda/buffer.hpp"
#include "cuda/copies.hpp"
#include "cuda/driver.hpp"
#include "cuda/error.hpp"
#include "cuda/event.hpp"
#include "cuda/kernel_copy.hpp"
#include "cuda/pool.hpp"
#include "cuda/stream.hpp"
#include "cuda/virtual_memory.hpp"
#include "tersum/error.hpp"

namespace tersum::gpu {
namespace {

using test::copy_now;
using test::fill_now;

class Foundation : public testing::Test {
 protected:
  void SetUp() override {
    if (!has_device()) GTEST_SKIP() << "no GPU";
  }
};

Code code_of(cudaError_t error) {
  try {
    check(error, "call");
  } catch (const Error& thrown) {
    return thrown.code();
  }
  return Code::Ok;
}

TEST(GpuError, NamesTheCallAndTheCodeOfCuda) {
  EXPECT_EQ(code_of(cudaSuccess), Code::Ok);
  EXPECT_EQ(code_of(cudaErrorMemoryAllocation), Code::OutOfMemory);
  try {
    check(cudaErrorInvalidValue, "cudaSomething");
    FAIL();
  } catch (const Error& thrown) {
    EXPECT_EQ(thrown.code(), Code::System);
    EXPECT_NE(thrown.status().message().find("cudaSomething"), std::string::npos);
    EXPECT_NE(thrown.status().message().find("cudaErrorInvalidValue"), std::string::npos);
  }
}

TEST(BufferPoolClasses, AreAtMostAQuarterTooLarge) {
  EXPECT_EQ(BufferPool::class_bytes(0), 256u);
  EXPECT_EQ(BufferPool::class_bytes(256), 256u);
  EXPECT_EQ(BufferPool::class_bytes(257), 512u);
  for (std::size_t bytes = 1025; bytes < 10'000'000; bytes += bytes / 7) {
    const std::size_t rounded = BufferPool::class_bytes(bytes);
    EXPECT_GE(rounded, bytes);
    EXPECT_LE(rounded, bytes + bytes / 4 + 1);
    EXPECT_EQ(rounded % 256, 0u);
    EXPECT_EQ(BufferPool::class_bytes(rounded), rounded);
  }
}

TEST_F(Foundation, BytesTravelToTheDeviceAndBackInTheOrderOfAStream) {
  const Stream stream(StreamPriority::High);
  const PinnedBuffer in(1000);
  const PinnedBuffer out(1000);
  const DeviceBuffer middle(1000);
  std::memset(in.data(), 42, in.bytes());
  check(cudaMemcpyAsync(middle.data(), in.data(), 1000, cudaMemcpyDefault, stream.get()), "copy");
  check(cudaMemcpyAsync(out.data(), middle.data(), 1000, cudaMemcpyDefault, stream.get()), "copy");
  const Event done;
  done.record(stream);
  done.synchronize();
  EXPECT_TRUE(done.is_done());
  EXPECT_EQ(std::memcmp(in.data(), out.data(), 1000), 0);
}

/// Bytes come as they were, at any alignment of both ends, and what is beside them stays.
TEST_F(Foundation, AKernelCopiesWhatACopyEngineWould) {
  constexpr std::size_t kRoom = 600'000;
  constexpr std::byte kFree{0xa5};
  const Stream stream;
  const PinnedBuffer in(kRoom), out(kRoom);
  const DeviceBuffer middle(kRoom);
  for (std::size_t i = 0; i < kRoom; ++i) in.data()[i] = static_cast<std::byte>(i * 31 + i / 251);
  for (const std::size_t bytes :
       {std::size_t{0}, std::size_t{1}, std::size_t{15}, std::size_t{16}, std::size_t{33},
        std::size_t{4096}, std::size_t{70'001}, std::size_t{524'288}, std::size_t{599'900}}) {
    for (std::size_t there = 0; there < 17; ++there) {
      const std::size_t here = there * 7 % 18, back = there * 5 % 16;
      fill_now(middle.data(), kFree, kRoom);
      std::memset(out.data(), static_cast<int>(kFree), kRoom);
      copy_by_kernel(stream, middle.data() + there, in.data() + here, bytes);
      copy_by_kernel(stream, out.data() + back, middle.data(), there + bytes + 20);
      stream.synchronize();
      std::vector<std::byte> expected(kRoom, kFree);
      std::memcpy(expected.data() + back + there, in.data() + here, bytes);
      ASSERT_EQ(std::memcmp(out.data(), expected.data(), kRoom), 0)
          << bytes << " bytes from " << here << " to " << there << " to " << back;
    }
  }
}

/// All of it, from both sides where it is the host's: what is written here comes back from there.
void expect_usable(Place place, const VirtualBuffer& buffer) {
  const Stream stream;
  const std::size_t bytes = buffer.bytes();
  const PinnedBuffer in(bytes), out(bytes);
  for (std::size_t i = 0; i < bytes; ++i) in.data()[i] = static_cast<std::byte>(i * 31 + i / 251);
  if (place == Place::Host) {
    std::memcpy(buffer.data(), in.data(), bytes);
    copy_by_kernel(stream, out.data(), buffer.data(), bytes);
    stream.synchronize();
    EXPECT_EQ(std::memcmp(out.data(), in.data(), bytes), 0) << "read by the device";
    std::memset(buffer.data(), 0, bytes);
  }
  copy_by_kernel(stream, buffer.data(), in.data(), bytes);
  std::memset(out.data(), 0, bytes);
  check(cudaMemcpyAsync(out.data(), buffer.data(), bytes, cudaMemcpyDefault, stream.get()), "copy");
  stream.synchronize();
  EXPECT_EQ(std::memcmp(out.data(), in.data(), bytes), 0);
  if (place == Place::Host) {
    EXPECT_EQ(std::memcmp(buffer.data(), in.data(), bytes), 0) << "read by the host";
  }
}

TEST_F(Foundation, VirtualMemoryIsThereToItsLastByte) {
  for (const Place place : {Place::Device, Place::Host}) {
    for (const std::size_t bytes :
         {std::size_t{1}, std::size_t{3} << 20, std::size_t{20'000'001}}) {
      VirtualBuffer buffer(place, bytes);
      EXPECT_GE(buffer.bytes(), bytes);
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer.data()) % 256, 0u);
      expect_usable(place, buffer);
      std::byte* const data = buffer.data();
      const VirtualBuffer moved(std::move(buffer));
      EXPECT_EQ(moved.data(), data);
      expect_usable(place, moved);
    }
    EXPECT_EQ(VirtualBuffer(place, 0).data(), nullptr);
  }
}

/// Five halves of what is free, one after the other.
TEST_F(Foundation, VirtualMemoryGoesBack) {
  std::size_t free = 0, total = 0;
  check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  for (int i = 0; i < 5; ++i) EXPECT_GE(VirtualBuffer(Place::Device, free / 2).bytes(), free / 2);
}

TEST_F(Foundation, VirtualMemoryRefusesMoreThanThereIs) {
  try {
    const VirtualBuffer buffer(Place::Device, std::size_t{1} << 50);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::OutOfMemory);
  }
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

/// The point of it: cudaMalloc() would wait here.
TEST_F(Foundation, VirtualMemoryDoesNotWaitForAThreadThatWaitsInsideCuda) {
  const auto wait_value = driver_function<decltype(cuStreamWaitValue32)>("cuStreamWaitValue32");
  if (wait_value == nullptr) GTEST_SKIP() << "the driver cannot let a stream wait for memory";
  const VirtualBuffer first(Place::Host, 1);  // looks the driver's functions up
  if (!first.is_virtual()) GTEST_SKIP() << "the driver gives no virtual memory on the host";
  const PinnedBuffer word(sizeof(std::uint32_t));
  const DeviceBuffer source(1 << 20);
  std::vector<std::byte> pageable(source.bytes());
  const Stream stream;
  ASSERT_EQ(wait_value(stream.get(), reinterpret_cast<CUdeviceptr>(word.data()), 1,
                       CU_STREAM_WAIT_VALUE_GEQ),
            CUDA_SUCCESS);
  std::thread blocked([&] {
    check(cudaMemcpyAsync(pageable.data(), source.data(), source.bytes(), cudaMemcpyDefault,
                          stream.get()),
          "cudaMemcpyAsync");
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  auto plain = std::async(std::launch::async, [] { return DeviceBuffer(10 << 20); });
  EXPECT_EQ(plain.wait_for(std::chrono::milliseconds(200)), std::future_status::timeout)
      << "cudaMalloc() does not wait: there is nothing to show here";
  auto made = std::async(std::launch::async, [] {
    return std::pair(VirtualBuffer(Place::Device, 10 << 20), VirtualBuffer(Place::Host, 10 << 20));
  });
  EXPECT_EQ(made.wait_for(std::chrono::seconds(10)), std::future_status::ready) << "it waits";
  std::atomic_ref(*word.as<std::uint32_t>()).store(1);
  blocked.join();
  expect_usable(Place::Host, made.get().second);
}

TEST_F(Foundation, PiecesOfPagesAreApartAndStay) {
  struct Piece {
    std::byte* data;
    std::size_t bytes;
  };
  for (const Place place : {Place::Device, Place::Host}) {
    PieceAllocator pieces(place);
    std::vector<Piece> taken;
    std::size_t sum = 0;
    for (std::size_t i = 0; sum < 3 * (std::size_t{2} << 20) || i < 41; ++i) {
      // Small ones, ones that do not fit into the rest of a page, one larger than a page.
      const std::size_t bytes = i == 40 ? 5'000'000 : 1 + i * i * 997 % 300'000;
      taken.push_back({pieces.take(bytes), bytes});
      sum += bytes;
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(taken.back().data) % 256, 0u);
    }
    for (std::size_t i = 0; i < taken.size(); ++i)
      fill_now(taken[i].data, static_cast<std::byte>(i + 1), taken[i].bytes);
    for (std::size_t i = 0; i < taken.size(); ++i) {
      std::vector<std::byte> here(taken[i].bytes);
      copy_now(here.data(), taken[i].data, here.size());
      EXPECT_EQ(here, std::vector<std::byte>(here.size(), static_cast<std::byte>(i + 1)))
          << "piece " << i << " of " << taken[i].bytes << " bytes";
    }
  }
}

TEST_F(Foundation, OwnersMoveWhatTheyOwn) {
  DeviceBuffer first(64);
  std::byte* data = first.data();
  const DeviceBuffer second(std::move(first));
  EXPECT_EQ(second.data(), data);
  EXPECT_EQ(first.data(), nullptr);
  EXPECT_EQ(DeviceBuffer(0).data(), nullptr);
}

TEST_F(Foundation, RefusesMoreMemoryThanThereIs) {
  try {
    const DeviceBuffer buffer(std::size_t{1} << 50);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::OutOfMemory);
  }
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

TEST_F(Foundation, PoolAllocatesNothingInASteadyState) {
  BufferPool pool;
  const Stream a;
  const Stream b;
  std::size_t after_first = 0;
  for (int step = 0; step < 20; ++step) {
    BufferLease one = pool.acquire(1000, a);
    BufferLease two = pool.acquire(100'000, b);
    check(cudaMemsetAsync(one.data(), step, one.bytes(), a.get()), "set");
    check(cudaMemsetAsync(two.data(), step, two.bytes(), b.get()), "set");
    if (step == 0) after_first = pool.allocations();
  }
  EXPECT_EQ(pool.allocations(), after_first);
  a.synchronize();
  b.synchronize();
}

TEST_F(Foundation, PoolOrdersTheNextUserAfterTheLast) {
  BufferPool pool;
  const Stream a;
  const Stream b;
  constexpr std::size_t kBytes = std::size_t{64} << 20;
  const PinnedBuffer out(kBytes);
  {
    const BufferLease lease = pool.acquire(kBytes, a);
    for (int i = 0; i < 50; ++i) {
      check(cudaMemsetAsync(lease.data(), 1, kBytes, a.get()), "set");
    }
  }
  const BufferLease lease = pool.acquire(kBytes, b);
  EXPECT_EQ(pool.allocations(), 1u);
  check(cudaMemsetAsync(lease.data(), 2, kBytes, b.get()), "set");
  b.synchronize();
  a.synchronize();
  copy_now(out.data(), lease.data(), kBytes);
  for (std::size_t i = 0; i < kBytes; i += 4097) ASSERT_EQ(out.data()[i], std::byte{2}) << i;
}

TEST_F(Foundation, PoolLendsIdleBuffersOnlyToACapturedGraph) {
  BufferPool pool;
  const Stream stream;
  cudaGraph_t graph = nullptr;
  check(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeGlobal), "capture");
  std::byte* captured = nullptr;
  {
    const BufferLease lease = pool.acquire(1 << 20, stream);
    captured = lease.data();
    check(cudaMemsetAsync(lease.data(), 1, lease.bytes(), stream.get()), "set");
  }
  check(cudaStreamEndCapture(stream.get(), &graph), "capture");
  EXPECT_NE(pool.acquire(1 << 20, stream).data(), captured);
  check(cudaGraphDestroy(graph), "graph");
}

TEST_F(Foundation, EventsMeasureTheWorkBetweenThem) {
  const Stream stream;
  const DeviceBuffer buffer(std::size_t{256} << 20);
  const Event start(Event::Timing::On);
  const Event end(Event::Timing::On);
  start.record(stream);
  check(cudaMemsetAsync(buffer.data(), 1, buffer.bytes(), stream.get()), "set");
  end.record(stream);
  end.synchronize();
  EXPECT_GT(end.milliseconds_since(start), 0.0f);
}

}  // namespace
}  // namespace tersum::gpu
