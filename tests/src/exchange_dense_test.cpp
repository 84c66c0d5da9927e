// Gradients that are not compressed: the exact mean, whatever their dtype, size, bucket and slice.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "src/exchange_support.hpp"

namespace tersum::test {
namespace {

/// results[rank][step] must hold the means or sums as the documentation defines them.
void expect_means(const std::vector<std::vector<Tensors>>& results, const Model& model,
                  ReduceOp op = ReduceOp::Average) {
  const int ranks = static_cast<int>(results.size());
  for (std::uint64_t step = 0; step < results[0].size(); ++step) {
    const auto inputs = gradients_of_all(model, ranks, step);
    for (std::size_t g = 0; g < model.size(); ++g) {
      const Bytes expected = reduced(model[g].dtype, op, each_of(inputs, g), model[g].count);
      for (const auto& replica : results)
        EXPECT_TRUE(same_bytes(replica[step][g], expected)) << model[g].key << ", step " << step;
    }
  }
}

ExchangeOptions small_slices() {
  ExchangeOptions options;
  options.slice_bytes = 8192;
  options.bucket_bytes = 65536;
  return options;
}

class DenseExchange : public ::testing::TestWithParam<std::tuple<DType, int>> {};
INSTANTIATE_TEST_SUITE_P(
    Of, DenseExchange,
    ::testing::Combine(::testing::Values(DType::Int8, DType::UInt8, DType::Int16, DType::Int32,
                                         DType::Int64, DType::Float16, DType::BFloat16,
                                         DType::Float32, DType::Float64),
                       ::testing::Values(1, 2, 3, 4)),
    [](const auto& test) {
      return std::string(to_string(std::get<0>(test.param))) + "_" +
             std::to_string(std::get<1>(test.param));
    });

TEST_P(DenseExchange, GivesTheExactMean) {
  const auto [dtype, ranks] = GetParam();
  const Model model = odd_model(dtype);
  World world = make_world(ranks);
  for (ReduceOp op : {ReduceOp::Average, ReduceOp::Sum}) {
    ExchangeOptions options = small_slices();
    options.op = op;
    const auto results = train(world, model, options, 3);
    expect_means(results, model, op);
  }
}

TEST(DenseExchange, MixesDTypesInOneModel) {
  Model model;
  for (DType dtype : kAllDTypes)
    if (dtype != DType::Bool)
      for (std::size_t count : {0u, 1u, 300u, 9000u})
        model.push_back(gradient(std::string(to_string(dtype)) + std::to_string(count), count,
                                 dtype, static_cast<int>(model.size())));
  World world = make_world(3);
  const auto results = train(world, model, small_slices(), 2, true);
  expect_means(results, model);
}

TEST(DenseExchange, LargeGradientsOfDefaultSettings) {
  Model model{gradient("embedding", 1500000, DType::Float32, 0),
              gradient("head", 300000, DType::BFloat16, 1)};
  World world = make_world(2);
  const auto results = train(world, model, {}, 1);
  expect_means(results, model);
}

TEST(DenseExchange, WritesNothingOutsideTheGradients) {
  const Model model = odd_model();
  World world = make_world(2);
  each_rank(2, [&](int rank) {
    GradientExchange exchange(world[static_cast<std::size_t>(rank)], model, small_slices());
    const Tensors tensors = gradients_of(model, rank, 0);
    std::vector<Guarded> memory;
    for (const Bytes& tensor : tensors) {
      memory.emplace_back(tensor.size());
      std::copy(tensor.begin(), tensor.end(), memory.back().data());
    }
    for (std::size_t g = model.size(); g-- > 0;) exchange.submit(g, memory[g].data());
    exchange.wait_all();
    const auto inputs = gradients_of_all(model, 2, 0);
    for (std::size_t g = 0; g < model.size(); ++g) {
      EXPECT_TRUE(memory[g].intact()) << model[g].key;
      EXPECT_TRUE(same_bytes(memory[g].view(), reduced(DType::Float32, ReduceOp::Average,
                                                       each_of(inputs, g), model[g].count)))
          << model[g].key;
    }
  });
}

TEST(DenseExchange, RunsOverTransportsThatDelayAndReorder) {
  std::vector<transport::FaultPlan> plans(3);
  for (std::size_t r = 0; r < plans.size(); ++r) {
    plans[r].seed = r + 5;
    plans[r].max_delay = 15;
    plans[r].reorder = true;
  }
  World world = make_faulty_world(plans);
  const Model model = odd_model();
  ExchangeOptions options = small_slices();
  options.credit_bytes = 8192;
  const auto results = train(world, model, options, 4, true);
  expect_means(results, model);
}

TEST(DenseExchange, AnIntegerGradientIsNeverCompressed) {
  const Model model{gradient("counts", 5000, DType::Int32), gradient("weights", 5000)};
  World world = make_world(2);
  const auto results = train(world, model, compressing("qint:bits=2"), 1);
  const auto inputs = gradients_of_all(model, 2, 0);
  EXPECT_EQ(results[0][0][0],
            reduced(DType::Int32, ReduceOp::Average, each_of(inputs, 0), model[0].count));
  EXPECT_NE(results[0][0][1],
            reduced(DType::Float32, ReduceOp::Average, each_of(inputs, 1), model[1].count));
}

TEST(DenseExchange, StatisticsCountBytesAndSteps) {
  const Model model{gradient("a", 10000), gradient("b", 6000)};
  World world = make_world(4);
  each_rank(4, [&](int rank) {
    GradientExchange exchange(world[static_cast<std::size_t>(rank)], model);
    EXPECT_EQ(exchange.statistics().steps, 0u);
    EXPECT_EQ(exchange.statistics().sent_bytes, 0u);
    for (std::uint64_t step = 0; step < 3; ++step) {
      Tensors tensors = gradients_of(model, rank, step);
      run_step(exchange, backward_order(model), tensors);
    }
    const ExchangeStatistics statistics = exchange.statistics();
    EXPECT_EQ(statistics.steps, 3u);
    EXPECT_EQ(statistics.dense_bytes, 3u * 2 * 3 * 16000 * 4 / 4);
    EXPECT_EQ(statistics.slices, 3u * exchange.plan().size());
    EXPECT_GE(statistics.sent_bytes, statistics.dense_bytes);
    EXPECT_LE(statistics.sent_bytes, statistics.dense_bytes * 2);
  });
}

}  // namespace
}  // namespace tersum::test
