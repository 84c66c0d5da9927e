// What calls on host memory must not do on a machine with a GPU. A process of its own: other tests
// make contexts.
#include <gtest/gtest.h>

#include <vector>

#include "cuda/driver.hpp"
#include "cuda/error.hpp"
#include "src/support.hpp"

namespace tersum::test {
namespace {

bool has_context(int device) {
  const auto get_state =
      gpu::driver_function<decltype(cuDevicePrimaryCtxGetState)>("cuDevicePrimaryCtxGetState");
  unsigned flags = 0;
  int active = 0;
  EXPECT_EQ(get_state(device, &flags, &active), CUDA_SUCCESS);
  return active != 0;
}

TEST(DeviceContext, HostTensorsMakeNone) {
  if (!gpu::has_device()) GTEST_SKIP() << "no GPU here";
  EXPECT_FALSE(has_context(0));
  World world = make_world(2);
  each_rank(2, [&](int rank) {
    std::vector<float> values(1000, 1.0f);
    world[static_cast<std::size_t>(rank)]
        .all_reduce(values.data(), values.data(), values.size(), DType::Float32)
        .wait();
    EXPECT_EQ(values[999], 2.0f);
  });
  EXPECT_FALSE(has_context(0));
}

}  // namespace
}  // namespace tersum::test
