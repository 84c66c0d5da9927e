// Exchanges that cannot be: ranks whose plans differ, peers that die, steps that fail.
#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <functional>
#include <latch>
#include <string>
#include <vector>

#include "src/exchange_support.hpp"

namespace tersum::test {
namespace {

/// What one rank does differently, and the words of both views.
struct PlanDifference {
  std::string name;
  std::function<void(Model&, ExchangeOptions&)> change;
  std::vector<std::string> words;
};

std::vector<PlanDifference> plan_differences() {
  return {
      {"Count", [](Model& m, ExchangeOptions&) { m[2].count = 778; }, {"777", "778"}},
      {"DType", [](Model& m, ExchangeOptions&) { m[2].dtype = DType::Float16; }, {"fp32", "fp16"}},
      {"Key", [](Model& m, ExchangeOptions&) { m[2].key = "other"; }, {"layer2.weight", "other"}},
      {"Position", [](Model& m, ExchangeOptions&) { m[2].position = 77; }, {"77"}},
      {"OneGradientLess", [](Model& m, ExchangeOptions&) { m.pop_back(); }, {"layer7.weight"}},
      {"Compressor",
       [](Model&, ExchangeOptions& o) { o.compressor = "topk:ratio=0.5"; },
       {"topk:ratio=0.1", "topk:ratio=0.5"}},
      {"Buckets", [](Model&, ExchangeOptions& o) { o.bucket_bytes = 1; }, {"bucket"}},
      {"Seed", [](Model&, ExchangeOptions& o) { o.seed = 43; }, {"seed 42", "seed 43"}},
      {"Operator", [](Model&, ExchangeOptions& o) { o.op = ReduceOp::Sum; }, {"average", "sum"}},
  };
}

class DifferentPlans : public ::testing::TestWithParam<std::tuple<PlanDifference, int>> {};
INSTANTIATE_TEST_SUITE_P(In, DifferentPlans,
                         ::testing::Combine(::testing::ValuesIn(plan_differences()),
                                            ::testing::Values(2, 3, 4)),
                         [](const auto& test) {
                           return std::get<0>(test.param).name + "_" +
                                  std::to_string(std::get<1>(test.param));
                         });

TEST_P(DifferentPlans, AreAMismatchOnAllRanksAndTheCommunicatorGoesOn) {
  const auto& [difference, ranks] = GetParam();
  World world = make_world(ranks);
  for (int odd : {0, ranks - 1}) {
    each_rank(ranks, [&, &change = difference](int rank) {
      Communicator& c = world[static_cast<std::size_t>(rank)];
      Model model = odd_model();
      ExchangeOptions options = compressing("topk:ratio=0.1");
      if (rank == odd) change.change(model, options);
      const Status status = thrown_by([&] { GradientExchange(c, model, options); });
      EXPECT_EQ(status.code(), Code::Mismatch) << status.to_string();
      for (const std::string& word : change.words)
        EXPECT_NE(status.message().find(word), std::string::npos)
            << "'" << word << "' is missing in: " << status.message();
      EXPECT_NE(status.message().find("rank 0"), std::string::npos);
    });
    // The communicator works, for collectives and for an exchange.
    const auto results = train(world, odd_model(), compressing("fp16"), 1);
    EXPECT_EQ(results.front(), results.back());
  }
}

TEST(ExchangeFailure, APeerThatDiesEndsTheStepOnAllSurvivors) {
  const Model model = odd_model();
  for (const std::string spec : {"none", "topk:ratio=0.1+ef", "qint:bits=4+ef", "fp16"})
    for (int victim : {0, 2}) {
      auto hub = std::make_shared<transport::LoopbackHub>(3);
      std::vector<Tensors> memory(3);  // outlives the engines: the victim's own still runs
      World world = make_mortal_world(hub);
      std::atomic<int> finished{0};  // ranks whose first step is over
      each_rank(3, [&](int rank) {
        const auto r = static_cast<std::size_t>(rank);
        GradientExchange exchange(world[r], model, compressing(spec));
        Tensors& tensors = memory[r];
        tensors = gradients_of(model, rank, 0);
        run_step(exchange, backward_order(model), tensors);
        ++finished;
        tensors = gradients_of(model, rank, 1);
        const Tensors before = tensors;
        std::vector<Work> works;
        for (std::size_t g : backward_order(model)) {
          if (rank == victim && g == 3) break;
          works.push_back(exchange.submit(g, tensors[g].data()));
        }
        if (rank == victim) {
          while (finished < 3) std::this_thread::yield();
          hub->kill(victim);
          return;
        }
        for (const Work& work : works) {
          const Status status = outcome(work);
          EXPECT_TRUE(status.is_ok() || status.code() == Code::PeerLost) << status.to_string();
          if (!status.is_ok()) {
            EXPECT_EQ(status.rank(), victim);
          }
        }
        const auto order = backward_order(model);
        for (std::size_t i = 0; i < works.size(); ++i)
          if (!works[i].status().is_ok()) {
            EXPECT_EQ(tensors[order[i]], before[order[i]]) << "a failed gradient has changed";
          }
        EXPECT_EQ(works.back().status().code(), Code::PeerLost);  // gradient 0 cannot have passed
        EXPECT_EQ(thrown_by([&] { exchange.commit(); }).code(), Code::PeerLost);
        exchange.rollback();
        // Whatever comes later fails with the same cause.
        const Work later = exchange.submit(std::size_t{0}, tensors[0].data());
        EXPECT_EQ(outcome(later).code(), Code::PeerLost);
        EXPECT_EQ(outcome(later).rank(), victim);
        exchange.rollback();
      });
    }
}

TEST(ExchangeFailure, AbortOfAnotherGroupDoesNotTouchTheExchange) {
  const Model model = odd_model();
  World world = make_world(2);
  each_rank(2, [&](int rank) {
    const auto r = static_cast<std::size_t>(rank);
    Communicator group = world[r].split(0);
    GradientExchange exchange(group, model, compressing("topk:ratio=0.1+ef"));
    EXPECT_TRUE(succeeds(world[r].barrier()));
    world[r].abort("unrelated");
    Tensors tensors = gradients_of(model, rank, 0);
    run_step(exchange, backward_order(model), tensors);
  });
}

TEST(ExchangeFailure, DestructionInTheMiddleOfAStepEndsItsWorks) {
  const Model model = odd_model();
  World world = make_world(2);
  std::vector<Tensors> tensors(2), before(2);
  std::vector<Work> works;
  std::mutex mutex;
  each_rank(2, [&](int rank) {
    const auto r = static_cast<std::size_t>(rank);
    tensors[r] = before[r] = gradients_of(model, rank, 0);
    GradientExchange exchange(world[r], model, compressing("qint:bits=4+ef"));
    // Rank 0 submits everything, rank 1 nothing.
    for (std::size_t g = 0; g < model.size() && rank == 0; ++g) {
      std::lock_guard lock(mutex);
      works.push_back(exchange.submit(g, tensors[0][g].data()));
    }
  });
  for (const Work& work : works) {
    const Status status = outcome(work);
    EXPECT_EQ(status.code(), Code::Aborted) << status.to_string();
  }
  EXPECT_EQ(tensors[0], before[0]);
  each_rank(
      2, [&](int rank) { EXPECT_TRUE(succeeds(world[static_cast<std::size_t>(rank)].barrier())); });
}

TEST(ExchangeFailure, AGradientThatARankNeverSubmitsIsATimeoutThatNamesIt) {
  const Model model{gradient("first", 100, DType::Float32, 0),
                    gradient("second", 100, DType::Float32, 1)};
  World world = make_world(2, quiet(std::chrono::milliseconds(300)));
  std::barrier both(2);
  each_rank(2, [&](int rank) {
    const auto r = static_cast<std::size_t>(rank);
    GradientExchange exchange(world[r], model);  // both in one bucket
    Tensors tensors = gradients_of(model, rank, 0);
    const Tensors before = tensors;
    const Work work = exchange.submit("second", tensors[1].data());
    for (const auto& wait :
         std::vector<std::function<void()>>{[&] { exchange.wait("second"); },
                                            [&] { exchange.wait_all(); }, [&] { work.wait(); }}) {
      const Status status = thrown_by(wait);
      EXPECT_EQ(status.code(), Code::Timeout) << status.to_string();
      EXPECT_NE(status.message().find("first"), std::string::npos) << status.message();
    }
    EXPECT_FALSE(work.done());
    both.arrive_and_wait();  // a rollback here would end the wait there
    exchange.rollback();
    EXPECT_EQ(tensors, before);
  });
}

TEST(ExchangeFailure, AWaitNamesWhoIsLateAndNotGradientsThatHoldNothingUp) {
  const Model model{gradient("first", 100), gradient("second", 100)};
  World world = make_world(2, quiet(std::chrono::milliseconds(300)));
  std::latch over(1);
  each_rank(2, [&](int rank) {
    const auto r = static_cast<std::size_t>(rank);
    ExchangeOptions options;
    options.bucket_bytes = 1;  // each in one of its own
    GradientExchange exchange(world[r], model, options);
    Tensors tensors = gradients_of(model, rank, 0);
    if (rank == 1) return over.wait();  // there, but silent
    const Work work = exchange.submit("second", tensors[1].data());
    const Status status = thrown_by([&] { work.wait(); });
    EXPECT_EQ(status.code(), Code::Timeout) << status.to_string();
    EXPECT_NE(status.message().find("rank 1"), std::string::npos) << status.message();
    EXPECT_EQ(status.message().find("first"), std::string::npos) << status.message();
    over.count_down();
  });
}

TEST(ExchangeFailure, AnExchangeMayGoInTheMiddleOfAStepThatTakesLong) {
  const Model model{gradient("large", 30'000'000), gradient("never", 100)};
  World world = make_world(1, quiet(std::chrono::milliseconds(10)));  // compressing takes longer
  std::vector<float> large(model[0].count, 1.0f);
  Work work;
  {
    ExchangeOptions options = compressing("qint:bits=4,rounding=stochastic+ef");
    options.bucket_bytes = 1 << 30;  // the last slice has a part of both
    options.slice_bytes = 100 << 20;
    GradientExchange exchange(world[0], model, options);
    work = exchange.submit("large", large.data());
  }
  EXPECT_TRUE(work.done());
  const std::string message = work.status().message();
  EXPECT_NE(message.find("rank 0 has destroyed the gradient exchange"), std::string::npos)
      << message;
}

TEST(ExchangeFailure, ARankThatNeverSubmitsIsNamedByATimeout) {
  const Model model{gradient("only", 100)};
  World world = make_world(3, quiet(std::chrono::milliseconds(300)));
  std::latch others(2);
  each_rank(3, [&](int rank) {
    const auto r = static_cast<std::size_t>(rank);
    GradientExchange exchange(world[r], model);
    Tensors tensors = gradients_of(model, rank, 0);
    const Tensors before = tensors;
    if (rank != 1) {
      const Status status = outcome(exchange.submit("only", tensors[0].data()));
      EXPECT_EQ(status.code(), Code::Timeout) << status.to_string();
      EXPECT_NE(status.message().find("rank 1"), std::string::npos) << status.message();
      EXPECT_EQ(tensors, before);
      others.count_down();
    } else {
      others.wait();  // there, but silent
    }
  });
}

TEST(ExchangeFailure, ALostMessageFailsTheStepAndLeavesTheGradients) {
  const Model model = odd_model();
  std::vector<transport::FaultPlan> plans(2);
  plans[0].drops = {{1, 25}};
  World world = make_faulty_world(plans, quiet(std::chrono::milliseconds(500)));
  each_rank(2, [&](int rank) {
    const auto r = static_cast<std::size_t>(rank);
    GradientExchange exchange(world[r], model, compressing("qint:bits=4+ef"));
    for (std::uint64_t step = 0;; ++step) {
      Tensors tensors = gradients_of(model, rank, step);
      const Tensors before = tensors;
      std::vector<Work> works;
      for (std::size_t g = 0; g < model.size(); ++g)
        works.push_back(exchange.submit(g, tensors[g].data()));
      bool failed = false;
      for (std::size_t g = 0; g < model.size(); ++g) {
        const Status status = outcome(works[g]);
        if (status.is_ok()) continue;
        failed = true;
        EXPECT_EQ(status.code(), Code::Timeout) << status.to_string();
        EXPECT_EQ(tensors[g], before[g]);
      }
      if (failed) break;
      exchange.commit();
      ASSERT_LT(step, 100u) << "the loss was not noticed";
    }
    exchange.rollback();
  });
}

}  // namespace
}  // namespace tersum::test
