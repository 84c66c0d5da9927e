// Launches that go straight to the driver.
#include <cuda.h>
#include <gtest/gtest.h>

#include "cuda/buffer.hpp"
#include "cuda/collective_launch.cuh"
#include "cuda/device.hpp"
#include "cuda/driver.hpp"

namespace tersum::gpu {
namespace {

__global__ void add(int* sum, int value) {
  *sum += value;
}

/// As a library does that keeps a context of its own and puts back what it believes to be none.
void take_context_off_this_thread() {
  const auto set_current = driver_function<decltype(cuCtxSetCurrent)>("cuCtxSetCurrent");
  ASSERT_NE(set_current, nullptr);
  ASSERT_EQ(set_current(nullptr), CUDA_SUCCESS);
}

TEST(Launch, NeedsNoContextOnItsThread) {
  if (!has_device()) GTEST_SKIP() << "no GPU";
  const Stream own;
  const PinnedBuffer sum(sizeof(int));
  int expected = 0, value = 0;
  *sum.as<int>() = 0;
  for (const StreamView stream :
       {own.view(), StreamView(cudaStreamPerThread), StreamView(cudaStreamLegacy)}) {
    for (int i = 0; i < 2; ++i) {
      launch(add, 1, 1, i == 1, stream, sum.as<int>(), ++value);
      expected += value;
      take_context_off_this_thread();
    }
    launch(add, 1, 1, false, stream, sum.as<int>(), ++value);
    expected += value;
    stream.synchronize();
    EXPECT_EQ(*sum.as<int>(), expected);
  }
}

}  // namespace
}  // namespace tersum::gpu
