// Gradients in device memory between hosts with several GPUs each: in three steps. Ranks are
// processes: a GPU serves one of each host, and kernels of one process that wait for peers can keep
// its others from starting.
#include <gtest/gtest.h>

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "src/device_gradients_support.hpp"
#include "src/device_job.hpp"

namespace tersum::test {
namespace {

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
  ReduceOp op = ReduceOp::Average;
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const std::string& spec : registered_specs()) {
    all.push_back({spec});
    all.push_back({spec, DType::BFloat16, ReduceOp::Sum});
  }
  all.push_back({"none", DType::Float16});
  all.push_back({"qint:bits=4,block=96+ef"});
  all.push_back({"topk:ratio=0.05+ef"});
  return all;
}

/// A rank of a job whose hosts take turns: "abab" has two with two ranks each.
class Rank {
 public:
  explicit Rank(int hosts, const Config& config = Config::from_environment())
      : communicator_(Communicator::connect(config)), hosts_(hosts) {
    gpu::check(cudaSetDevice(communicator_.rank() / hosts % gpus()), "cudaSetDevice");
    stream_.emplace();
  }

  void exchanges_what_hosts_have_together(const Case& test) {
    SCOPED_TRACE(test.spec + ", " + std::string(to_string(test.dtype)));
    const Model model = odd_model(test.dtype);
    ExchangeOptions options = compressing(test.spec);
    options.op = test.op;
    const auto expected = expected_results(model, options, hosts_, 2, 3);
    GradientExchange exchange(communicator_, on_device(model), options);
    const DeviceTensors tensors(model);
    for (std::uint64_t step = 0; step < 3; ++step) {
      submit(exchange, model, tensors, step, model.size());
      exchange.wait_all();
      exchange.commit();
      EXPECT_EQ(tensors.read(*stream_), expected[step]) << "step " << step;
    }
  }

  /// Integers: sums in steps, averages at once.
  void is_exact(DType dtype, ReduceOp op) {
    SCOPED_TRACE(std::string(to_string(dtype)));
    const Model model = odd_model(dtype);
    ExchangeOptions options = compressing("none");
    options.op = op;
    GradientExchange exchange(communicator_, on_device(model), options);
    const DeviceTensors tensors(model);
    submit(exchange, model, tensors, 0, model.size());
    exchange.wait_all();
    const auto all = gradients_of_all(model, communicator_.size(), 0);
    const Tensors results = tensors.read(*stream_);
    for (std::size_t g = 0; g < model.size(); ++g)
      EXPECT_EQ(results[g], reduced(dtype, op, each_of(all, g), model[g].count)) << g;
    exchange.commit();
  }

  /// Two hosts: `bytes` of messages for the whole gradient, one half from each rank of a host.
  void sends(std::uint64_t bytes, const std::string& spec, DType dtype) {
    SCOPED_TRACE(spec + ", " + std::string(to_string(dtype)));
    const Model model = {gradient("weight", kMany, dtype)};
    ExchangeOptions options = compressing(spec);
    options.slice_bytes = std::size_t{1} << 18;
    GradientExchange exchange(communicator_, on_device(model), options);
    const DeviceTensors tensors(model);
    submit(exchange, model, tensors, 0, model.size());
    exchange.wait_all();
    exchange.commit();
    EXPECT_GE(exchange.statistics().sent_bytes, bytes / 2);
    EXPECT_LE(exchange.statistics().sent_bytes, bytes / 2 + bytes / 50);  // headers of slices
  }

  void sends_its_share_once() {
    // One half of a share to its owner on the other host, the result of the other half back.
    sends(make_compressor("qint:bits=8")->max_payload_bytes(kMany), "qint:bits=8", DType::Float32);
    sends(kMany * (4 + 4) / 2, "none", DType::Float32);
    sends(kMany * (4 + 2) / 2, "none", DType::BFloat16);
  }

  /// And goes on in a new exchange from the states of the one before.
  void repeats_a_step_that_has_failed() {
    const Model model = odd_model();
    const ExchangeOptions options = compressing("qint:bits=4+ef");
    const auto expected = expected_results(model, options, hosts_, 2, 3);
    const DeviceTensors tensors(model);
    const bool last = communicator_.rank() == communicator_.size() - 1;
    std::vector<std::byte> saved;
    for (std::uint64_t step = 0; step < 3; ++step) {
      GradientExchange exchange(communicator_, on_device(model), options);
      if (step > 0) exchange.load(saved);
      submit(exchange, model, tensors, step, last ? model.size() / 2 : model.size());
      if (!last) {
        EXPECT_EQ(thrown_by([&] { exchange.wait_all(); }).code(), Code::Aborted);
      }
      exchange.rollback();
      submit(exchange, model, tensors, step, model.size());
      exchange.wait_all();
      exchange.commit();
      EXPECT_EQ(tensors.read(*stream_), expected[step]) << "step " << step;
      saved = exchange.save();
    }
  }

 private:
  static constexpr std::size_t kMany = std::size_t{1} << 20;

  /// The first `few` gradients, in backward order.
  void submit(GradientExchange& exchange, const Model& model, const DeviceTensors& tensors,
              std::uint64_t step, std::size_t few) {
    tensors.write(gradients_of(model, communicator_.rank(), step), *stream_);
    const auto order = backward_order(model);
    for (std::size_t i = 0; i < few; ++i)
      exchange.submit(order[i], tensors[order[i]], stream_->view());
  }

  Communicator communicator_;
  const int hosts_;
  std::optional<gpu::Stream> stream_;  // of the device that is current by then
};

/// This process is host TERSUM_RANK, and its two ranks are threads.
void run_two_ranks() {
  const Config host = Config::from_environment();
  each_rank(2, [&](int position) {
    Config config = host;
    config.rank = 2 * position + host.rank;
    config.size = 4;
    Rank rank(2, config);
    for (const char* spec : {"none", "qint:bits=4+ef", "topk:ratio=0.05+ef"})
      rank.exchanges_what_hosts_have_together({spec});
    rank.sends_its_share_once();
  });
}

TEST(DeviceRank, Runs) {
  const std::string what = role();
  if (what.empty()) GTEST_SKIP() << "a rank of the tests below";
  if (what == "threads") return run_two_ranks();
  Rank rank(what == "three hosts" ? 3 : 2);
  if (what == "methods") {
    for (const Case& test : cases()) rank.exchanges_what_hosts_have_together(test);
  } else if (what == "three hosts") {
    for (const char* spec : {"none", "fp16", "qint:bits=4,block=96+ef", "topk:ratio=0.05+ef"})
      rank.exchanges_what_hosts_have_together({spec});
  } else {
    rank.is_exact(DType::Int32, ReduceOp::Sum);
    rank.is_exact(DType::UInt8, ReduceOp::Average);
    rank.sends_its_share_once();
    rank.repeats_a_step_that_has_failed();
  }
}

class DeviceHierarchy : public testing::Test {
 protected:
  void SetUp() override {
    if (gpus() == 0) GTEST_SKIP() << "no GPU here";
  }
  static void run(const std::string& hosts, const std::string& what) {
    Job job(hosts, what);
    for (std::size_t rank = 0; rank < hosts.size(); ++rank) EXPECT_EQ(job.status_of(rank), 0);
  }
};

TEST_F(DeviceHierarchy, AllMethodsExchangeWhatHostsHaveTogether) {
  run("abab", "methods");
}

TEST_F(DeviceHierarchy, OneProcessWithSeveralGpus) {
  run("ab", "threads");
}

TEST_F(DeviceHierarchy, ThreeHosts) {
  run("abcabc", "three hosts");
}

TEST_F(DeviceHierarchy, IntegersBytesAndFailures) {
  run("abab", "the rest");
}

}  // namespace
}  // namespace tersum::test
