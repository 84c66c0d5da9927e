// What must not change a bit of any result: slices, buckets, credit, policy, the order of
// submission, threads.
#include <gtest/gtest.h>

#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "src/exchange_support.hpp"

namespace tersum::test {
namespace {

/// Gradients under a compressor of every class, by their names.
Model mixed_model() {
  Model model;
  const std::size_t counts[] = {9000, 1, 0, 3000};
  int position = 0;
  for (std::size_t count : counts)
    for (const char* kind :
         {"topk", "qint", "noise", "sign", "random", "half", "momentum", "plain"})
      model.push_back(gradient(std::string(kind) + "." + std::to_string(count), count,
                               DType::Float32, position++ / 3));
  return model;
}

ExchangeOptions mixed_options() {
  ExchangeOptions options;
  options.compressor_rules =
      "topk*=topk:ratio=0.05+ef; qint*=qint:bits=4,block=64+ef; "
      "noise*=qint:bits=3,rounding=stochastic; sign*=sign:block=96+ef; "
      "random*=randomk:ratio=0.2+ef; half*=fp16; momentum*=qint:bits=4+ef+momentum=0.9";
  options.compress_min_bytes = 0;
  options.seed = 9;
  return options;
}

struct Variation {
  std::string name;
  std::function<void(ExchangeOptions&, Config&)> change;
  bool shuffled = false;
};

std::vector<Variation> variations() {
  return {
      {"SmallSlices", [](ExchangeOptions& o, Config&) { o.slice_bytes = 1000; }},
      {"LargeSlices", [](ExchangeOptions& o, Config&) { o.slice_bytes = 64u << 20; }},
      {"BucketsOfOne", [](ExchangeOptions& o, Config&) { o.bucket_bytes = 1; }},
      {"SmallBuckets", [](ExchangeOptions& o, Config&) { o.bucket_bytes = 20000; }},
      {"OneByteOfCredit",
       [](ExchangeOptions& o, Config&) {
         o.credit_bytes = 1;
         o.slice_bytes = 4000;
       }},
      {"EndlessCredit", [](ExchangeOptions& o, Config&) { o.credit_bytes = std::size_t{1} << 40; }},
      {"Fifo", [](ExchangeOptions& o, Config&) { o.policy = "fifo"; }},
      {"FifoWithoutCredit",
       [](ExchangeOptions& o, Config&) {
         o.policy = "fifo";
         o.credit_bytes = 1;
         o.slice_bytes = 4000;
       },
       true},
      {"AnyOrder", [](ExchangeOptions&, Config&) {}, true},
      {"AnyOrderWithoutCredit",
       [](ExchangeOptions& o, Config&) {
         o.credit_bytes = 1;
         o.slice_bytes = 4000;
         o.bucket_bytes = 30000;
       },
       true},
      {"NoPool", [](ExchangeOptions&, Config& c) { c.threads = 0; }},
      {"ManyThreads", [](ExchangeOptions&, Config& c) { c.threads = 4; }},
  };
}

constexpr int kRanks = 3;
constexpr std::uint64_t kSteps = 3;

std::vector<std::vector<Tensors>> results_of(const Variation* variation) {
  ExchangeOptions options = mixed_options();
  Config config = quiet();
  if (variation != nullptr) variation->change(options, config);
  World world = make_world(kRanks, config);
  return train(world, mixed_model(), options, kSteps, variation != nullptr && variation->shuffled);
}

void expect_usual_results(const std::vector<std::vector<Tensors>>& results) {
  static const auto usual = results_of(nullptr)[0];
  const Model model = mixed_model();
  for (std::uint64_t step = 0; step < kSteps; ++step)
    for (std::size_t g = 0; g < model.size(); ++g)
      for (std::size_t r = 0; r < results.size(); ++r)
        EXPECT_EQ(results[r][step][g], usual[step][g])
            << model[g].key << ", step " << step << ", rank " << r;
}

class Invariance : public ::testing::TestWithParam<Variation> {};
INSTANTIATE_TEST_SUITE_P(Under, Invariance, ::testing::ValuesIn(variations()),
                         [](const auto& test) { return test.param.name; });

TEST_P(Invariance, KeepsEveryBit) {
  expect_usual_results(results_of(&GetParam()));
}

TEST(Invariance, AMixedModelHasSomethingToCompress) {
  // The other tests would pass if nothing were compressed at all.
  World world = make_world(kRanks);
  const auto dense = train(world, mixed_model(), {}, 1);
  const auto compressed = results_of(nullptr);
  const Model model = mixed_model();
  for (std::size_t g = 0; g < model.size(); ++g) {
    if (model[g].count < 3000) continue;
    const bool plain = model[g].key.starts_with("plain");
    EXPECT_EQ(dense[0][0][g] == compressed[0][0][g], plain) << model[g].key;
  }
}

TEST(Invariance, SubmissionFromSeveralThreadsInAnyOrder) {
  const Model model = mixed_model();
  World world = make_world(kRanks);
  std::vector<std::vector<Tensors>> results(kRanks);
  each_rank(kRanks, [&](int rank) {
    const auto r = static_cast<std::size_t>(rank);
    ExchangeOptions options = mixed_options();
    options.slice_bytes = 4000;
    options.credit_bytes = 10000;
    GradientExchange exchange(world[r], model, options);
    for (std::uint64_t step = 0; step < kSteps; ++step) {
      Tensors tensors = gradients_of(model, rank, step);
      auto order = backward_order(model);
      std::mt19937 random(static_cast<unsigned>(step * 10 + r));
      std::shuffle(order.begin(), order.end(), random);
      each_rank(4, [&](int thread) {
        for (std::size_t i = static_cast<std::size_t>(thread); i < order.size(); i += 4) {
          exchange.submit(model[order[i]].key, tensors[order[i]].data());
        }
      });
      exchange.wait_all();
      exchange.commit();
      results[r].push_back(std::move(tensors));
    }
  });
  expect_usual_results(results);
}

TEST(Invariance, TransportsThatDelayAndReorder) {
  std::vector<transport::FaultPlan> plans(kRanks);
  for (std::size_t r = 0; r < plans.size(); ++r) {
    plans[r].seed = r + 50;
    plans[r].max_delay = 10;
    plans[r].reorder = true;
  }
  World world = make_faulty_world(plans);
  ExchangeOptions options = mixed_options();
  options.slice_bytes = 4000;
  options.credit_bytes = 8000;
  expect_usual_results(train(world, mixed_model(), options, kSteps, true));
}

TEST(Invariance, StartingLateOnSomeRanksChangesNothing) {
  // A rank's first slices reach the others before their exchange exists.
  const Model model = mixed_model();
  for (int late = 0; late < kRanks; ++late) {
    World world = make_world(kRanks);
    std::vector<std::vector<Tensors>> results(kRanks);
    std::vector<std::unique_ptr<GradientExchange>> exchanges(kRanks);
    each_rank(kRanks, [&](int rank) {
      const auto r = static_cast<std::size_t>(rank);
      ExchangeOptions options = mixed_options();
      options.credit_bytes = 1;
      options.slice_bytes = 4000;
      GradientExchange exchange(world[r], model, options);
      for (std::uint64_t step = 0; step < kSteps; ++step) {
        Tensors tensors = gradients_of(model, rank, step);
        auto order = backward_order(model);
        if (rank == late) std::reverse(order.begin(), order.end());
        run_step(exchange, order, tensors);
        results[r].push_back(std::move(tensors));
      }
    });
    expect_usual_results(results);
  }
}

}  // namespace
}  // namespace tersum::test
