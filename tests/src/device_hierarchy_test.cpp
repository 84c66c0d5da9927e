// Gradients in device memory between hosts with several GPUs each: in three steps.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdlib>
#include <string>
#include <vector>

#include "src/device_gradients_support.hpp"

namespace tersum::test {
namespace {

// Here a GPU serves a rank of each host, whose streams must not share the GPU's queues (8 by
// default): a kernel that waits for a peer would keep the other host's from starting.
const int kQueuesSet = setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);

/// Ranks of the hosts take turns: neighbours are on different hosts.
World make_hosts(int hosts, int each) {
  std::vector<Config> configs(static_cast<std::size_t>(hosts * each), quiet());
  for (std::size_t r = 0; r < configs.size(); ++r)
    configs[r].host_id = "host" + std::to_string(r % static_cast<std::size_t>(hosts));
  return make_local_world(configs);
}

/// The device of a rank: those of one host have one each.
int device_of(int rank, int hosts) {
  return rank / hosts % gpus();
}

/// What the ranks of a host have of one gradient together, in fp32.
Bytes combined(const Gradient& gradient, const std::vector<Bytes>& tensors, ReduceOp op) {
  std::vector<float> sum(gradient.count);
  for (const Bytes& tensor : tensors) {
    const auto values = as_floats(gradient.dtype, tensor);
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += values[i];
  }
  if (op == ReduceOp::Average)
    for (float& value : sum) value /= static_cast<float>(tensors.size());
  Bytes bytes(sum.size() * sizeof(float));
  for (std::size_t i = 0; i < sum.size(); ++i) put(DType::Float32, bytes.data(), i, sum[i], 0);
  return bytes;
}

/// results[step] of an exchange between ranks whose gradients are the hosts'.
std::vector<Tensors> expected_results(const Model& model, const ExchangeOptions& options, int hosts,
                                      int each, std::uint64_t steps) {
  std::vector<SerialExchange> exchanges;
  for (Gradient gradient : model) {
    gradient.dtype = DType::Float32;
    exchanges.emplace_back(*options.compressor, gradient, hosts, *options.seed, options.op);
  }
  std::vector<Tensors> results;
  for (std::uint64_t step = 0; step < steps; ++step) {
    const auto all = gradients_of_all(model, hosts * each, step);
    Tensors tensors;
    for (std::size_t g = 0; g < model.size(); ++g) {
      std::vector<Bytes> inputs;
      for (int host = 0; host < hosts; ++host) {
        std::vector<Bytes> own;
        for (int rank = host; rank < hosts * each; rank += hosts)
          own.push_back(all[static_cast<std::size_t>(rank)][g]);
        inputs.push_back(combined(model[g], own, options.op));
      }
      const auto values = as_floats(DType::Float32, exchanges[g].step(inputs));
      Bytes result(model[g].count * element_bytes(model[g].dtype));
      for (std::size_t i = 0; i < values.size(); ++i)
        put(model[g].dtype, result.data(), i, values[i], static_cast<int>(values[i]));
      tensors.push_back(result);
    }
    results.push_back(tensors);
  }
  return results;
}

struct Case {
  std::string spec;
  DType dtype = DType::Float32;
  int hosts = 2;
  ReduceOp op = ReduceOp::Average;
};

class DeviceHierarchy : public testing::Test {
 protected:
  void SetUp() override {
    if (gpus() < 2) GTEST_SKIP() << "ranks that wait for each other need a GPU each";
  }
};

class DeviceHierarchyMethods : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (gpus() < 2) GTEST_SKIP() << "ranks that wait for each other need a GPU each";
  }
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const std::string& spec : registered_specs()) {
    all.push_back({spec, DType::Float32});
    if (spec != "none") all.push_back({spec, DType::BFloat16, 2, ReduceOp::Sum});
  }
  for (const char* spec : {"none", "fp16", "qint:bits=4,block=24+ef", "topk:ratio=0.05+ef"})
    all.push_back({spec, DType::Float32, 3});
  for (DType dtype : {DType::Int32, DType::UInt8}) all.push_back({"none", dtype, 2, ReduceOp::Sum});
  return all;
}

TEST_P(DeviceHierarchyMethods, ExchangesWhatHostsHaveTogether) {
  const auto& [spec, dtype, hosts, op] = GetParam();
  const Model model = odd_model(dtype);
  ExchangeOptions options = compressing(spec);
  options.op = op;
  World world = make_hosts(hosts, 2);
  const auto expected = expected_results(model, options, hosts, 2, 3);
  const auto results = train_on_devices(world, on_device(model), options, 3,
                                        [&](int rank) { return device_of(rank, hosts); });
  for (const auto& result : results) EXPECT_EQ(result, expected);
}

INSTANTIATE_TEST_SUITE_P(All, DeviceHierarchyMethods, testing::ValuesIn(cases()),
                         [](const testing::TestParamInfo<Case>& test) {
                           return spec_name(test.param.spec) + "_" +
                                  std::string(to_string(test.param.dtype)) + "_" +
                                  std::to_string(test.param.hosts) + "_hosts";
                         });

TEST_F(DeviceHierarchy, HalfPrecisionThatIsNotCompressedIsRoundedOnce) {
  const Model model = odd_model(DType::Float16);
  World world = make_hosts(2, 2);
  const auto expected = train(world, model, compressing("none"), 2);
  EXPECT_EQ(train_on_devices(world, on_device(model), compressing("none"), 2,
                             [](int rank) { return device_of(rank, 2); }),
            expected);
}

TEST_F(DeviceHierarchy, AHostSendsItsShareOnce) {
  const Model model = {gradient("weight", std::size_t{1} << 20)};
  World world = make_hosts(2, 2);
  std::vector<std::uint64_t> sent(world.size());
  each_rank(4, [&](int rank) {
    gpu::check(cudaSetDevice(device_of(rank, 2)), "cudaSetDevice");
    const gpu::Stream stream;
    const DeviceTensors tensors(model);
    GradientExchange exchange(world[static_cast<std::size_t>(rank)], on_device(model),
                              compressing("qint:bits=8"));
    tensors.write(gradients_of(model, rank, 0), stream);
    exchange.submit(0, tensors[0], stream.view());
    exchange.wait_all();
    exchange.commit();
    sent[static_cast<std::size_t>(rank)] = exchange.statistics().sent_bytes;
  });
  const std::uint64_t payload = make_compressor("qint:bits=8")->max_payload_bytes(model[0].count);
  // Both directions of one payload, halved between the host's two ranks; headers of slices more.
  for (const std::uint64_t bytes : sent) {
    EXPECT_GE(bytes, payload / 2);
    EXPECT_LE(bytes, payload / 2 + payload / 20);
  }
}

TEST_F(DeviceHierarchy, AStepThatFailsIsDoneAgain) {
  const Model model = odd_model();
  const ExchangeOptions options = compressing("qint:bits=4+ef");
  World world = make_hosts(2, 2);
  const auto expected = expected_results(model, options, 2, 2, 2);
  each_rank(4, [&](int rank) {
    gpu::check(cudaSetDevice(device_of(rank, 2)), "cudaSetDevice");
    const gpu::Stream stream;
    const DeviceTensors tensors(model);
    GradientExchange exchange(world[static_cast<std::size_t>(rank)], on_device(model), options);
    const auto order = backward_order(model);
    for (std::uint64_t step = 0; step < 2; ++step) {
      const Tensors inputs = gradients_of(model, rank, step);
      tensors.write(inputs, stream);
      const std::size_t few = rank == 3 ? model.size() / 2 : model.size();
      for (std::size_t i = 0; i < few; ++i)
        exchange.submit(order[i], tensors[order[i]], stream.view());
      if (rank != 3) {
        EXPECT_EQ(thrown_by([&] { exchange.wait_all(); }).code(), Code::Aborted);
      }
      exchange.rollback();
      tensors.write(inputs, stream);
      for (std::size_t g : order) exchange.submit(g, tensors[g], stream.view());
      exchange.wait_all();
      exchange.commit();
      EXPECT_EQ(tensors.read(stream), expected[step]);
    }
  });
}

}  // namespace
}  // namespace tersum::test
