// Gradients in device memory: everything as for those in host memory, bit for bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "src/device_gradients_support.hpp"

namespace tersum::test {
namespace {

/// Ranks of one host exchange over peer memory, those of different hosts through messages.
World make_hosts(int ranks, bool one_host) {
  std::vector<Config> configs(static_cast<std::size_t>(ranks), quiet());
  for (std::size_t r = 0; r < configs.size(); ++r)
    configs[r].host_id = "host" + std::to_string(one_host ? 0 : r);
  return make_local_world(configs);
}

/// Device memory that is free when nothing is under way on any rank.
std::size_t free_bytes(Communicator& communicator) {
  communicator.barrier().wait();
  std::size_t available = 0, all = 0;
  gpu::check(cudaMemGetInfo(&available, &all), "cudaMemGetInfo");
  communicator.barrier().wait();
  return available;
}

struct Case {
  std::string spec;
  DType dtype;
  int ranks;
  bool one_host = false;
};

class DeviceGradientMethods : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (gpus() == 0) GTEST_SKIP() << "no GPU here";
  }
};

/// Parameter: on one host.
class DeviceGradients : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (gpus() < (GetParam() ? 2 : 1)) GTEST_SKIP() << "too few GPUs here";
  }
};

INSTANTIATE_TEST_SUITE_P(Hosts, DeviceGradients, testing::Values(false, true),
                         [](const testing::TestParamInfo<bool>& test) {
                           return test.param ? "One" : "Several";
                         });

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const std::string& spec : registered_specs())
    for (DType dtype : {DType::Float32, DType::BFloat16})
      all.push_back({spec, dtype, dtype == DType::Float32 ? 3 : 2});
  for (DType dtype : {DType::Float16, DType::Float64, DType::Int32, DType::UInt8})
    all.push_back({"none", dtype, 2});
  for (int ranks : {1, 2, 4}) all.push_back({"qint:bits=4,block=64+ef", DType::Float32, ranks});
  all.push_back({"topk:ratio=0.05+ef", DType::Float16, 2});
  for (std::size_t i = 0, count = all.size(); i < count; ++i)
    all.push_back({all[i].spec, all[i].dtype, all[i].ranks == 3 ? 2 : all[i].ranks, true});
  all.push_back({"none", DType::Float32, 4, true});
  return all;
}

TEST_P(DeviceGradientMethods, GivesTheBitsOfTheHost) {
  const auto& [spec, dtype, ranks, one_host] = GetParam();
  if (one_host && ranks > std::max(gpus(), 1))
    GTEST_SKIP() << "ranks that wait for each other need a GPU each";
  const Model model = odd_model(dtype);
  const ExchangeOptions options = compressing(spec);
  World world = make_hosts(ranks, one_host);
  const auto expected = train(world, model, options, 3);
  EXPECT_EQ(train_on_devices(world, on_device(model), options, 3), expected);
}

INSTANTIATE_TEST_SUITE_P(All, DeviceGradientMethods, testing::ValuesIn(cases()),
                         [](const testing::TestParamInfo<Case>& test) {
                           return spec_name(test.param.spec) + "_" +
                                  std::string(to_string(test.param.dtype)) + "_" +
                                  std::to_string(test.param.ranks) +
                                  (test.param.one_host ? "_one_host" : "");
                         });

TEST_P(DeviceGradients, MixesHostAndDeviceInOnePlan) {
  Model model = odd_model();
  const ExchangeOptions options = compressing("qint:bits=4+ef");
  World world = make_hosts(2, GetParam());
  const auto expected = train(world, model, options, 2);
  for (std::size_t g = 0; g < model.size(); g += 2) model[g].memory = MemoryType::Cuda;
  each_rank(2, [&](int rank) {
    gpu::check(cudaSetDevice(rank % gpus()), "cudaSetDevice");
    const auto r = static_cast<std::size_t>(rank);
    const gpu::Stream stream;
    const DeviceTensors device(model);
    GradientExchange exchange(world[r], model, options);
    for (std::uint64_t step = 0; step < 2; ++step) {
      Tensors host = gradients_of(model, rank, step);
      device.write(host, stream);
      for (std::size_t g : backward_order(model)) {
        if (model[g].memory == MemoryType::Cuda)
          exchange.submit(g, device[g], stream.view());
        else
          exchange.submit(g, host[g].data());
      }
      exchange.wait_all();
      exchange.commit();
      const Tensors results = device.read(stream);
      for (std::size_t g = 0; g < model.size(); ++g)
        EXPECT_EQ(model[g].memory == MemoryType::Cuda ? results[g] : host[g], expected[r][step][g]);
    }
  });
}

TEST_P(DeviceGradients, RolledBackAndLoadedStatesGiveTheSameStepAgain) {
  const Model model = on_device(odd_model());
  const ExchangeOptions options = compressing("qint:bits=2+ef+momentum=0.9");
  World world = make_hosts(2, GetParam());
  const auto expected = train_on_devices(world, model, options, 3);
  each_rank(2, [&](int rank) {
    gpu::check(cudaSetDevice(rank % gpus()), "cudaSetDevice");
    const auto r = static_cast<std::size_t>(rank);
    const gpu::Stream stream;
    const DeviceTensors tensors(model);
    auto exchange = std::make_unique<GradientExchange>(world[r], model, options);
    const auto step = [&](std::uint64_t number) {
      tensors.write(gradients_of(model, rank, number), stream);
      for (std::size_t g : backward_order(model)) exchange->submit(g, tensors[g], stream.view());
      exchange->wait_all();
      return tensors.read(stream);
    };
    EXPECT_EQ(step(0), expected[r][0]);
    exchange->commit();
    step(1);
    exchange->rollback();
    EXPECT_EQ(step(1), expected[r][1]);
    exchange->commit();
    const auto saved = exchange->save();
    exchange = std::make_unique<GradientExchange>(world[r], model, options);
    exchange->load(saved);
    EXPECT_EQ(step(2), expected[r][2]);
    exchange->commit();
  });
}

TEST_P(DeviceGradients, StreamsWaitForWorksWhileTheHostGoesOn) {
  const Model model = on_device(odd_model());
  World world = make_hosts(2, GetParam());
  const auto expected = train_on_devices(world, model, compressing("none"), 1);
  each_rank(2, [&](int rank) {
    gpu::check(cudaSetDevice(rank % gpus()), "cudaSetDevice");
    const auto r = static_cast<std::size_t>(rank);
    const gpu::Stream stream;
    const DeviceTensors tensors(model), copies(model);
    const Tensors inputs = gradients_of(model, rank, 0);
    GradientExchange exchange(world[r], model, compressing("none"));
    tensors.write(inputs, stream);
    std::vector<Work> works(model.size());
    for (std::size_t g : backward_order(model))
      works[g] = exchange.submit(g, tensors[g], stream.view());
    const gpu::Stream next;  // the next forward pass: in the order of the layers
    for (std::size_t g = 0; g < model.size(); ++g) {
      works[g].wait_on(next.view());
      if (model[g].count > 0)
        gpu::check(cudaMemcpyAsync(copies[g], tensors[g], inputs[g].size(),
                                   cudaMemcpyDeviceToDevice, next.get()),
                   "cudaMemcpyAsync");
    }
    next.synchronize();  // a copy to pageable memory here would hold up those of the other ranks
    EXPECT_EQ(copies.read(next), expected[r][0]);
    exchange.commit();
  });
}

TEST_P(DeviceGradients, RefusesMemoryOfTheOtherKind) {
  World world = make_hosts(1, GetParam());
  Model model = {gradient("device", 8), gradient("host", 8)};
  model[0].memory = MemoryType::Cuda;
  GradientExchange exchange(world[0], model, compressing("none"));
  const gpu::DeviceBuffer device(32);
  std::array<float, 8> host{};
  const gpu::Stream stream;
  const Status wrong_host = thrown_by([&] { exchange.submit("device", host.data()); });
  EXPECT_EQ(wrong_host.code(), Code::InvalidArgument);
  EXPECT_NE(wrong_host.message().find("device"), std::string::npos);
  EXPECT_EQ(thrown_by([&] { exchange.submit("host", device.data()); }).code(),
            Code::InvalidArgument);
  EXPECT_EQ(thrown_by([&] { exchange.submit("host", host.data(), stream.view()); }).code(),
            Code::InvalidArgument);
  exchange.submit("device", device.data(), stream.view());  // nothing of this has counted
  exchange.submit("host", host.data());
  exchange.wait_all();
}

TEST_P(DeviceGradients, ARankThatRollsBackEndsTheStepOfAll) {
  const Model model = on_device(odd_model());
  World world = make_hosts(2, GetParam());
  each_rank(2, [&](int rank) {
    gpu::check(cudaSetDevice(rank % gpus()), "cudaSetDevice");
    const gpu::Stream stream;
    const DeviceTensors tensors(model);
    const Tensors inputs = gradients_of(model, rank, 0);
    GradientExchange exchange(world[static_cast<std::size_t>(rank)], model,
                              compressing("topk:ratio=0.1+ef"));
    tensors.write(inputs, stream);
    const auto order = backward_order(model);
    const std::size_t few = rank == 0 ? model.size() / 2 : model.size();
    std::vector<Work> works;
    for (std::size_t i = 0; i < few; ++i)
      works.push_back(exchange.submit(order[i], tensors[order[i]], stream.view()));
    if (rank == 1) {
      EXPECT_EQ(thrown_by([&] { exchange.wait_all(); }).code(), Code::Aborted);
    }
    exchange.rollback();
    for (const Work& work : works) EXPECT_TRUE(work.done());
    tensors.write(inputs, stream);
    for (std::size_t g : order) exchange.submit(g, tensors[g], stream.view());
    exchange.wait_all();
    exchange.commit();
  });
}

/// When so many streams wait that the next one's caller has to, gradients that never come do not
/// keep it for ever.
TEST(DeviceGradientWaits, GradientsThatAreNeverSubmittedAreATimeoutThatNamesThem) {
  if (gpus() == 0) GTEST_SKIP() << "no GPU here";
  const Model model = on_device({gradient("first", 100), gradient("second", 100)});  // one bucket
  World world = make_local_world(std::vector<Config>{quiet(std::chrono::milliseconds(300))});
  GradientExchange exchange(world[0], model, compressing("none"));
  const gpu::Stream stream;
  const DeviceTensors tensors(model);
  const Tensors inputs = gradients_of(model, 0, 0);
  tensors.write(inputs, stream);
  const Work work = exchange.submit("second", tensors[1], stream.view());
  const std::vector<gpu::Stream> nexts(32);
  std::size_t held = 0;
  Status status;
  while (status.is_ok() && held < nexts.size())
    status = thrown_by([&] { work.wait_on(nexts[held++].view()); });
  EXPECT_EQ(status.code(), Code::Timeout) << status.to_string();
  EXPECT_NE(status.message().find("first"), std::string::npos) << status.message();
  exchange.submit("first", tensors[0], stream.view());
  exchange.wait_all();
  for (const gpu::Stream& next : nexts) next.synchronize();
  EXPECT_EQ(tensors.read(stream), inputs);
}

TEST(DeviceGradientMemory, ExchangesThatComeAndGoAndRollBackLeaveNoneTaken) {
  if (gpus() < 2) GTEST_SKIP() << "needs two GPUs that map each other's memory";
  constexpr std::size_t kAllowed = std::size_t{64} << 20;  // of the driver's own
  const Model model = on_device({{.key = "a", .count = 100'000, .compressor = "qint:bits=4+ef"},
                                 {.key = "b", .count = 50'000, .compressor = {}}});
  World world = make_hosts(2, true);
  each_rank(2, [&](int rank) {
    Communicator& communicator = world[static_cast<std::size_t>(rank)];
    gpu::check(cudaSetDevice(rank), "cudaSetDevice");
    const gpu::Stream stream;
    const DeviceTensors tensors(model);
    const Tensors inputs = gradients_of(model, rank, 0);
    std::size_t before = 0;
    for (int i = 0; i < 20; ++i) {
      if (i == 3) before = free_bytes(communicator);
      GradientExchange exchange(communicator, model, {});
      tensors.write(inputs, stream);
      if (rank == 0) exchange.submit(0, tensors[0], stream.view());  // rank 1 gives the step up
      exchange.rollback();
      for (std::size_t g : backward_order(model)) exchange.submit(g, tensors[g], stream.view());
      exchange.wait_all();
      exchange.commit();
    }
    EXPECT_LT(before - std::min(before, free_bytes(communicator)), kAllowed);
  });
}

}  // namespace
}  // namespace tersum::test
