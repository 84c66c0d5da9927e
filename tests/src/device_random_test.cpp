// Exchanges on devices that nobody thought of, against those of the host; see draw.hpp for more of
// them.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "src/collectives_random.hpp"
#include "src/device_gradients_support.hpp"
#include "src/exchange_random.hpp"

namespace tersum::test {
namespace {

/// Ranks that wait for each other's kernels, those of one host, have a GPU each.
World draw_world(Draw& draw) {
  const bool one_host = draw.one_in(2);
  std::vector<Config> configs(1 + draw.below(one_host ? static_cast<std::size_t>(gpus()) : 4),
                              quiet());
  for (std::size_t r = 0; r < configs.size() && !one_host; ++r)
    configs[r].host_id = "host" + std::to_string(r);
  return make_local_world(configs);
}

/// Through pinned memory: other host memory may wait for another rank's kernels.
class DeviceMemory final : public TensorMemory {
 public:
  explicit DeviceMemory(gpu::StreamView stream) : stream_(stream) {}
  void write(std::size_t offset, const Bytes& bytes) override {
    std::memcpy(pinned_.data(), bytes.data(), bytes.size());
    copy(at(offset), pinned_.data(), bytes.size());
  }
  Bytes read(std::size_t offset, std::size_t bytes) override {
    copy(pinned_.data(), at(offset), bytes);
    return {pinned_.data(), pinned_.data() + bytes};
  }
  std::byte* at(std::size_t offset) override { return memory_.data() + offset; }

 private:
  void copy(void* to, const void* from, std::size_t bytes) {
    gpu::check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_.get()),
               "cudaMemcpyAsync");
    stream_.synchronize();
  }

  gpu::StreamView stream_;
  gpu::DeviceBuffer memory_{kCapacity};
  gpu::PinnedBuffer pinned_{kCapacity};
};

TEST(DeviceRandom, CollectivesGiveWhatIsExpected) {
  if (gpus() == 0) GTEST_SKIP() << "no GPU here";
  for (std::uint64_t number = 0; number < 4; ++number) {
    SCOPED_TRACE("case " + std::to_string(number));
    Draw shape(number);
    World world = draw_world(shape);
    each_rank(static_cast<int>(world.size()), [&](int rank) {
      gpu::check(cudaSetDevice(rank % gpus()), "cudaSetDevice");
      const gpu::Stream stream;
      Draw draw(number + 1000);
      DeviceMemory memory(stream);
      Communicator& communicator = world[static_cast<std::size_t>(rank)];
      communicator.barrier().wait();  // nobody allocates while others wait
      RandomCalls::make_rounds(communicator, draw, memory, {.stream = stream.view()});
      communicator.barrier().wait();
    });
    if (HasFatalFailure()) return;
  }
}

TEST(DeviceRandom, GradientsGiveTheBitsOfTheHost) {
  if (gpus() == 0) GTEST_SKIP() << "no GPU here";
  for (std::uint64_t number = 0; number < 20; ++number) {
    SCOPED_TRACE("case " + std::to_string(number));
    Draw draw(number);
    const auto [model, options, about] = draw_exchange(draw);
    SCOPED_TRACE(about);
    World world = draw_world(draw);
    const std::uint64_t steps = 1 + draw.below(3);
    const auto expected = train(world, model, options, steps);
    const auto found = train_on_devices(world, on_device(model), options, steps);
    for (std::size_t r = 0; r < world.size(); ++r)
      for (std::size_t step = 0; step < steps; ++step)
        for (std::size_t g = 0; g < model.size(); ++g)
          ASSERT_TRUE(found[r][step][g] == expected[r][step][g])
              << "rank " << r << " of " << world.size() << ", step " << step << ", " << model[g].key
              << ": " << model[g].count << " " << to_string(model[g].dtype);
  }
}

}  // namespace
}  // namespace tersum::test
