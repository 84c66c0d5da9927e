// Every registered compressor through the exchange: replicas agree to the bit, and with a reference
// that simulates all ranks one after the other.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "src/exchange_support.hpp"

namespace tersum::test {
namespace {

double norm(const std::vector<float>& values) {
  double sum = 0;
  for (float v : values) sum += static_cast<double>(v) * v;
  return std::sqrt(sum);
}

void expect_reference(const std::vector<std::vector<Tensors>>& results, const std::string& spec,
                      const Model& model, int ranks, std::uint64_t steps, std::uint64_t seed,
                      ReduceOp op = ReduceOp::Average) {
  std::vector<SerialExchange> serial;
  for (const Gradient& g : model) serial.emplace_back(spec, g, ranks, seed, op);
  for (std::uint64_t step = 0; step < steps; ++step) {
    const auto inputs = gradients_of_all(model, ranks, step);
    for (std::size_t g = 0; g < model.size(); ++g) {
      const Bytes expected = serial[g].step(each_of(inputs, g));
      for (std::size_t r = 0; r < results.size(); ++r)
        EXPECT_TRUE(same_bytes(results[r][step][g], expected))
            << spec << ": " << model[g].key << ", step " << step << ", rank " << r;
    }
  }
}

class CompressedExchange : public ::testing::TestWithParam<std::tuple<std::string, int>> {
 protected:
  const std::string& spec() const { return std::get<0>(GetParam()); }
  int ranks() const { return std::get<1>(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(With, CompressedExchange,
                         ::testing::Combine(::testing::ValuesIn(registered_specs()),
                                            ::testing::Values(1, 2, 3, 4)),
                         [](const auto& test) {
                           return spec_name(std::get<0>(test.param)) + "_" +
                                  std::to_string(std::get<1>(test.param));
                         });

TEST_P(CompressedExchange, EqualsTheSerialReferenceOnAllRanks) {
  const Model model = odd_model();
  World world = make_world(ranks());
  const auto results = train(world, model, compressing(spec()), 4);
  expect_reference(results, spec(), model, ranks(), 4, 42);
}

TEST_P(CompressedExchange, ConvertsSixteenBitGradients) {
  World world = make_world(ranks());
  for (DType dtype : {DType::Float16, DType::BFloat16}) {
    const Model model = odd_model(dtype);
    ExchangeOptions options = compressing(spec());
    const auto results = train(world, model, options, 2);
    // Uncompressed gradients are summed in their own dtype, which the dense tests look at.
    if (make_compressor(spec())->traits().name == "none") continue;
    expect_reference(results, spec(), model, ranks(), 2, 42);
  }
}

TEST(CompressedExchange, KeepsTheErrorBelowTheGradientItself) {
  const Model model{gradient("weights", 6000)};
  for (int ranks : {1, 2, 4}) {
    World world = make_world(ranks);
    const auto inputs = each_of(gradients_of_all(model, ranks, 0), 0);
    double largest = 0;
    for (const Bytes& input : inputs)
      largest = std::max(largest, norm(as_floats(DType::Float32, input)));
    const auto mean =
        as_floats(DType::Float32, reduced(DType::Float32, ReduceOp::Average, inputs, 6000));
    for (const std::string& spec : registered_specs()) {
      const auto results = train(world, model, compressing(spec), 1);
      auto error = as_floats(DType::Float32, results[0][0][0]);
      for (std::size_t i = 0; i < error.size(); ++i) error[i] -= mean[i];
      // A contraction loses at most its input, once at each rank and once more at the owner.
      EXPECT_LE(norm(error), 2 * largest) << spec;
    }
  }
}

TEST(CompressedExchange, SumsInsteadOfAveraging) {
  const Model model = odd_model();
  World world = make_world(3);
  for (const std::string spec :
       {"topk:ratio=0.05+ef", "qint:bits=4+ef", "fp16", "randomk:ratio=0.1"}) {
    ExchangeOptions options = compressing(spec);
    options.op = ReduceOp::Sum;
    const auto results = train(world, model, options, 3);
    expect_reference(results, spec, model, 3, 3, 42, ReduceOp::Sum);
  }
}

TEST(CompressedExchange, ParametersBeyondTheDefaults) {
  const Model model = odd_model();
  World world = make_world(3);
  for (const std::string spec :
       {"topk:k=1+ef", "topk:ratio=1", "qint:bits=2,block=32+ef",
        "qint:bits=8,rounding=stochastic+ef", "sign:block=64+ef+momentum=0.9",
        "randomk:ratio=0.3,scale=unbiased", "randomk:k=5+ef"}) {
    const auto results = train(world, model, compressing(spec), 3);
    expect_reference(results, spec, model, 3, 3, 42);
  }
}

TEST(CompressedExchange, AnotherSeedDrawsOtherElements) {
  const Model model{gradient("weights", 5000)};
  World world = make_world(2);
  ExchangeOptions options = compressing("randomk:ratio=0.1");
  const auto first = train(world, model, options, 1);
  options.seed = 43;
  const auto second = train(world, model, options, 1);
  EXPECT_NE(first[0][0][0], second[0][0][0]);
  expect_reference(second, "randomk:ratio=0.1", model, 2, 1, 43);
}

TEST(CompressedExchange, NonFiniteGradientsPassThroughAndAreForgotten) {
  const Model model{gradient("weights", 1000)};
  World world = make_world(2);
  each_rank(2, [&](int rank) {
    GradientExchange exchange(world[static_cast<std::size_t>(rank)], model,
                              compressing("topk:ratio=0.01+ef"));
    Tensors tensors = gradients_of(model, rank, 0);
    if (rank == 0) store_as(&tensors[0][4 * 17], std::numeric_limits<float>::infinity());
    run_step(exchange, {0}, tensors);
    EXPECT_TRUE(std::isinf(float_at(DType::Float32, tensors[0].data(), 17)));
    for (std::uint64_t step = 1; step < 5; ++step) {
      tensors = gradients_of(model, rank, step);
      run_step(exchange, {0}, tensors);
      for (float v : as_floats(DType::Float32, tensors[0])) EXPECT_TRUE(std::isfinite(v));
    }
  });
}

TEST(CompressedExchange, RulesSizeLimitAndExplicitSpecsChooseTheCompressor) {
  Model model{gradient("conv.bias", 5000), gradient("conv.weight", 5000), gradient("tiny", 10),
              gradient("embed", 5000), gradient("forced", 10)};
  model[4].compressor = "fp16";
  ExchangeOptions options;
  options.compressor = "qint:bits=4";
  options.compressor_rules = "*.bias=none; emb*=topk:ratio=0.5";
  options.compress_min_bytes = 4096;
  World world = make_world(2);
  const auto results = train(world, model, options, 1);
  const char* specs[] = {"none", "qint:bits=4", "none", "topk:ratio=0.5", "fp16"};
  const auto inputs = gradients_of_all(model, 2, 0);
  for (std::size_t g = 0; g < model.size(); ++g) {
    const Bytes expected = SerialExchange(specs[g], model[g], 2).step(each_of(inputs, g));
    EXPECT_TRUE(same_bytes(results[0][0][g], expected)) << model[g].key;
    EXPECT_TRUE(same_bytes(results[1][0][g], expected)) << model[g].key;
  }
}

TEST(CompressedExchange, SendsFewerBytes) {
  const Model model{gradient("weights", 200000)};
  World world = make_world(2);
  const auto sent = [&](const std::string& spec) {
    std::vector<std::uint64_t> bytes(2);
    each_rank(2, [&](int rank) {
      const auto r = static_cast<std::size_t>(rank);
      GradientExchange exchange(world[r], model, compressing(spec));
      Tensors tensors = gradients_of(model, rank, 0);
      run_step(exchange, {0}, tensors);
      bytes[r] = exchange.statistics().sent_bytes;
    });
    EXPECT_EQ(bytes[0], bytes[1]);
    return bytes[0];
  };
  const auto dense = sent("none");
  EXPECT_GE(dense, 200000u * 4);
  EXPECT_LT(sent("qint:bits=4"), dense / 6);
  EXPECT_LT(sent("topk:ratio=0.01"), dense / 40);
  EXPECT_LT(sent("fp16"), dense * 11 / 20);
}

}  // namespace
}  // namespace tersum::test
