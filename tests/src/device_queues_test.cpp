// Streams that wait for works, with what programs put behind such a wait, while there are as few
// queues as CUDA_DEVICE_MAX_CONNECTIONS says. Ranks are processes, with the queues that users have.
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "src/device/hold.hpp"
#include "src/device_gradients_support.hpp"
#include "src/device_job.hpp"

namespace tersum::test {
namespace {

TEST(HeldStreams, LeaveQueuesToTheWorksThatTheyWaitFor) {
  EXPECT_EQ(runtime::most_held_streams(nullptr), 1u);
  EXPECT_EQ(runtime::most_held_streams("1"), 0u);
  EXPECT_EQ(runtime::most_held_streams("4"), 0u);
  EXPECT_EQ(runtime::most_held_streams("8"), 1u);
  EXPECT_EQ(runtime::most_held_streams("16"), 5u);
  EXPECT_EQ(runtime::most_held_streams("32"), 13u);
  EXPECT_EQ(runtime::most_held_streams("1000"), 13u);  // CUDA makes 32 of it
  for (const char* text : {"", "0", "-3", "many"})
    EXPECT_EQ(runtime::most_held_streams(text), 0u) << text;
}

/// Many slices in each step, and more than a page of memory for them.
Model sliced_model() {
  Model model;
  for (int layer = 0; layer < 9; ++layer)
    model.push_back(gradient("layer" + std::to_string(layer) + ".weight",
                             200'000 + 28'001 * static_cast<std::size_t>(layer), DType::Float32,
                             layer));
  return on_device(model);
}

/// What a program puts behind the first wait of each step that makes it wait inside CUDA.
enum class Behind {
  Item,   ///< a copy of a few bytes to pageable memory, as torch's item()
  Flood,  ///< more than a stream that waits takes
};

void put_behind(Behind what, void* memory, gpu::StreamView stream) {
  if (what == Behind::Item) {
    float item = 0;
    gpu::check(cudaMemcpyAsync(&item, memory, sizeof(item), cudaMemcpyDeviceToHost, stream.get()),
               "cudaMemcpyAsync");
    stream.synchronize();
  } else {
    for (int i = 0; i < 3000; ++i)
      gpu::check(cudaMemsetAsync(memory, 0, sizeof(float), stream.get()), "cudaMemsetAsync");
  }
}

/// The results of some steps of a program that runs ahead: after each wait_on() a stream reads the
/// gradient, takes the next batch up and something down. Every second rank is late, so that the
/// others have to start slices beyond their credit.
std::vector<Tensors> train_ahead(Communicator& communicator, const Model& model,
                                 const ExchangeOptions& options, Behind behind, std::uint64_t steps,
                                 std::uint64_t& overdrawn) {
  constexpr std::size_t kBatch = 1 << 20;
  const gpu::Stream stream;
  std::array<gpu::Stream, 3> nexts;  // more than may wait where there are eight queues
  const DeviceTensors tensors(model), copies(model);
  const gpu::DeviceBuffer batch(kBatch), loss(kBatch);
  const gpu::PinnedBuffer batch_here(kBatch), loss_here(kBatch);
  GradientExchange exchange(communicator, model, options);
  std::vector<Tensors> results;
  for (std::uint64_t step = 0; step < steps; ++step) {
    const Tensors inputs = gradients_of(model, communicator.rank(), step);
    tensors.write(inputs, stream);
    std::vector<Work> works(model.size());
    for (std::size_t g : backward_order(model)) {
      if (communicator.rank() % 2 == 1) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      works[g] = exchange.submit(g, tensors[g], stream.view());
    }
    for (std::size_t g = 0; g < model.size(); ++g) {
      const gpu::StreamView next = nexts[g % nexts.size()];
      works[g].wait_on(next);
      const auto copy = [&](void* to, const void* from, std::size_t bytes) {
        gpu::check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, next.get()),
                   "cudaMemcpyAsync");
      };
      copy(copies[g], tensors[g], inputs[g].size());
      copy(batch.data(), batch_here.data(), kBatch);
      copy(loss_here.data(), loss.data(), kBatch);
      if (g == 0) put_behind(behind, loss.data(), next);
    }
    for (const gpu::Stream& next : nexts) next.synchronize();
    results.push_back(copies.read(nexts[0]));
    exchange.commit();
  }
  overdrawn += exchange.statistics().overdrawn_slices;
  return results;
}

TEST(DeviceRank, Runs) {
  if (role().empty()) GTEST_SKIP() << "a rank of the tests below";
  Communicator communicator = Communicator::connect();
  // Ranks of one host have GPUs of their own. Where ranks of two hosts share each, they take turns
  // there, which makes a slice slow: fewer of them.
  const bool shared = role() == "four";
  const int place = shared ? communicator.rank() / 2 : communicator.rank();
  gpu::check(cudaSetDevice(place % gpus()), "cudaSetDevice");
  const Model model = sliced_model();
  std::uint64_t overdrawn = 0;
  struct Run {
    const char* spec;
    std::size_t slice_bytes;
  };
  for (const Run& run : {Run{"none", 8192},  // more messages than UCX has buffers for at first
                         Run{"none", 300'000}, Run{"fp16", 300'000}, Run{"qint:bits=4+ef", 300'000},
                         Run{"topk:ratio=0.01+ef", 300'000}}) {
    ExchangeOptions options = compressing(run.spec);
    options.slice_bytes = shared ? std::size_t{2} << 20 : run.slice_bytes;
    options.bucket_bytes = options.slice_bytes;
    options.credit_bytes = 2 << 20;
    // The very first exchange of the process is one that has to run ahead.
    const auto item = train_ahead(communicator, model, options, Behind::Item, 3, overdrawn);
    const auto flood = train_ahead(communicator, model, options, Behind::Flood, 3, overdrawn);
    const auto expected = train_on_device(communicator, model, options, 3);
    EXPECT_EQ(item, expected) << run.spec;
    EXPECT_EQ(flood, expected) << run.spec;
  }
  if (communicator.rank() == 0) {
    EXPECT_GT(overdrawn, 0u) << "nobody was late";
  }
}

struct Case {
  const char* hosts;
  const char* connections;  ///< empty: what CUDA takes by itself
};

std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << c.hosts << " with " << (*c.connections != '\0' ? c.connections : "CUDA's own")
             << " queues";
}

class DeviceQueues : public testing::TestWithParam<Case> {};

INSTANTIATE_TEST_SUITE_P(Few, DeviceQueues,
                         testing::Values(Case{"ab", ""}, Case{"ab", "1"}, Case{"ab", "4"},
                                         Case{"ab", "12"}, Case{"aa", ""}, Case{"aa", "1"},
                                         Case{"aa", "2"}, Case{"aa", "12"}, Case{"abab", ""},
                                         Case{"abab", "1"}));

TEST_P(DeviceQueues, WorksEndWithCopiesBehindAWait) {
  if (gpus() == 0) GTEST_SKIP() << "no GPU here";
  const std::string hosts = GetParam().hosts;
  if (hosts != "ab" && gpus() < 2) GTEST_SKIP() << "one GPU only: a host needs two";
  std::vector<std::string> settings = {"TERSUM_TIMEOUT_MS=10000"};
  if (*GetParam().connections != '\0')
    settings.push_back(std::string("CUDA_DEVICE_MAX_CONNECTIONS=") + GetParam().connections);
  Job job(hosts, hosts.size() == 4 ? "four" : "two", settings);
  for (std::size_t rank = 0; rank < hosts.size(); ++rank) EXPECT_EQ(job.status_of(rank), 0) << rank;
}

}  // namespace
}  // namespace tersum::test
