// Steps of the gradient exchange: submission, waiting, commit, rollback, and the plan.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "src/exchange_support.hpp"

namespace tersum::test {
namespace {

Model two_gradients() {
  return {gradient("first", 3000, DType::Float32, 0), gradient("second", 2000, DType::Float32, 1)};
}

/// Each gradient in a bucket of its own.
ExchangeOptions apart() {
  ExchangeOptions options = compressing("topk:ratio=0.1+ef");
  options.bucket_bytes = 1;
  return options;
}

void has_words(const Status& status, Code code, const std::vector<std::string>& words) {
  EXPECT_EQ(status.code(), code) << status.to_string();
  for (const std::string& word : words)
    EXPECT_NE(status.message().find(word), std::string::npos)
        << "'" << word << "' is missing in: " << status.message();
}

TEST(ExchangeSteps, WaitsForWhatWasSubmittedOnly) {
  World world = make_world(2);
  each_rank(2, [&](int rank) {
    GradientExchange exchange(world[static_cast<std::size_t>(rank)], two_gradients(), apart());
    has_words(thrown_by([&] { exchange.wait("first"); }), Code::InvalidState,
              {"first", "not been submitted"});
    has_words(thrown_by([&] { exchange.wait(1); }), Code::InvalidState, {"second"});
    exchange.wait_all();  // of nothing
    Tensors tensors = gradients_of(two_gradients(), rank, 0);
    const Work work = exchange.submit("second", tensors[1].data());
    exchange.wait("second");
    EXPECT_TRUE(work.done());
    exchange.wait_all();
    has_words(thrown_by([&] { exchange.wait("first"); }), Code::InvalidState, {"first"});
    exchange.submit("first", tensors[0].data());
    exchange.wait("first");
  });
}

TEST(ExchangeSteps, RefuseASecondSubmissionAndAnIncompleteCommit) {
  World world = make_world(2);
  each_rank(2, [&](int rank) {
    GradientExchange exchange(world[static_cast<std::size_t>(rank)], two_gradients(), apart());
    Tensors tensors = gradients_of(two_gradients(), rank, 0);
    exchange.commit();  // of nothing
    exchange.submit("second", tensors[1].data());
    has_words(thrown_by([&] { exchange.submit("second", tensors[1].data()); }), Code::InvalidState,
              {"second", "submitted in this step already", "first"});
    has_words(thrown_by([&] { exchange.commit(); }), Code::InvalidState,
              {"commit", "not submitted yet: first"});
    exchange.wait("second");
    has_words(thrown_by([&] { exchange.submit("second", tensors[1].data()); }), Code::InvalidState,
              {"second"});
    exchange.submit("first", tensors[0].data());
    exchange.commit();
    EXPECT_EQ(exchange.statistics().steps, 1u);
  });
}

TEST(ExchangeSteps, RefuseBadArgumentsByName) {
  World world = make_world(1);
  GradientExchange exchange(world[0], two_gradients(), apart());
  std::vector<float> data(4000);
  has_words(thrown_by([&] { exchange.submit("third", data.data()); }), Code::InvalidArgument,
            {"third"});
  has_words(thrown_by([&] { exchange.wait("third"); }), Code::InvalidArgument, {"third"});
  has_words(thrown_by([&] { exchange.submit(2, data.data()); }), Code::InvalidArgument,
            {"2", "0..1"});
  has_words(thrown_by([&] { exchange.wait(2); }), Code::InvalidArgument, {"2", "0..1"});
  has_words(thrown_by([&] { exchange.submit("first", nullptr); }), Code::InvalidArgument,
            {"first", "null"});
  has_words(
      thrown_by([&] { exchange.submit("first", reinterpret_cast<std::byte*>(data.data()) + 2); }),
      Code::InvalidArgument, {"first", "aligned", "fp32"});
  int stream = 0;
  has_words(thrown_by([&] { exchange.submit("first", data.data(), {&stream}); }),
            Code::InvalidArgument, {"stream"});
  // None of them has counted.
  Tensors tensors = gradients_of(two_gradients(), 0, 0);
  run_step(exchange, {1, 0}, tensors);
}

TEST(ExchangeSteps, RefuseBadModelsByName) {
  World world = make_world(1);
  const auto make = [&](Model model, const ExchangeOptions& options = {}) {
    return thrown_by([&] { GradientExchange(world[0], std::move(model), options); });
  };
  has_words(make({}), Code::InvalidArgument, {"at least one"});
  has_words(make({gradient("a", 1), gradient("a", 2)}), Code::InvalidArgument, {"a"});
  has_words(make({gradient("", 1)}), Code::InvalidArgument, {"key"});
  has_words(make({gradient("flags", 3, DType::Bool)}), Code::InvalidArgument, {"flags", "bool"});
  has_words(make({gradient("w", 3, static_cast<DType>(99))}), Code::InvalidArgument,
            {"w", "dtype"});
  has_words(make({gradient("w", 3, DType::Float32, -1)}), Code::InvalidArgument, {"w", "negative"});
  Gradient counted = gradient("counts", 3, DType::Int32);
  counted.compressor = "qint";
  has_words(make({counted}), Code::InvalidArgument, {"counts"});
  ExchangeOptions options;
  options.compressor = "topq:ratio=0.1";
  has_words(make({gradient("w", 3)}, options), Code::InvalidArgument, {"topq", "topk"});
  options = {};
  options.policy = "lifo";
  has_words(make({gradient("w", 3)}, options), Code::InvalidArgument, {"lifo"});
  options = {};
  options.credit_bytes = 0;
  has_words(make({gradient("w", 3)}, options), Code::InvalidArgument, {"credit"});
  options = {};
  options.slice_bytes = 0;
  has_words(make({gradient("w", 3)}, options), Code::InvalidArgument, {"slice"});
  options = {};
  options.op = ReduceOp::Max;
  has_words(make({gradient("w", 3)}, options), Code::InvalidArgument, {"max"});
  has_words(thrown_by([&] { GradientExchange(Communicator(), {gradient("w", 1)}); }),
            Code::InvalidState, {"communicator"});
}

/// Alone, a slice ends at once, and the next one begins: not inside of it, or the stack would end.
TEST(ExchangeSteps, ManySlicesThatEndAtOnceFollowEachOther) {
  constexpr std::size_t kCount = 800'000;
  ExchangeOptions options;
  options.slice_bytes = 64;
  World world = make_world(1);
  GradientExchange exchange(world[0], {gradient("w", kCount)}, options);
  std::vector<float> values(kCount, 1.5f);
  exchange.submit(0, values.data());
  exchange.wait_all();
  EXPECT_EQ(exchange.statistics().slices, kCount * sizeof(float) / 64);
  EXPECT_EQ(values, std::vector<float>(kCount, 1.5f));
}

TEST(ExchangeSteps, AnotherSubmitCommitsWhatIsDone) {
  const Model model = two_gradients();
  World world = make_world(2), other = make_world(2);
  const auto explicit_results = train(world, model, apart(), 3);
  each_rank(2, [&](int rank) {
    const auto r = static_cast<std::size_t>(rank);
    GradientExchange exchange(other[r], model, apart());
    for (std::uint64_t step = 0; step < 3; ++step) {
      Tensors tensors = gradients_of(model, rank, step);
      for (std::size_t g : backward_order(model)) exchange.submit(g, tensors[g].data());
      exchange.wait_all();  // and no commit
      EXPECT_EQ(exchange.statistics().steps, step + 1);
      EXPECT_EQ(tensors, explicit_results[r][step]);
    }
  });
}

TEST(ExchangeSteps, WaitInForwardOrderWhileOthersAreStillOnTheirWay) {
  const Model model = odd_model();
  World world = make_world(3), other = make_world(3);
  const auto expected = train(world, model, compressing("qint:bits=4+ef"), 3);
  each_rank(3, [&](int rank) {
    const auto r = static_cast<std::size_t>(rank);
    GradientExchange exchange(other[r], model, compressing("qint:bits=4+ef"));
    for (std::uint64_t step = 0; step < 3; ++step) {
      Tensors tensors = gradients_of(model, rank, step);
      for (std::size_t g : backward_order(model)) exchange.submit(g, tensors[g].data());
      for (std::size_t g = 0; g < model.size(); ++g) {
        exchange.wait(model[g].key);
        EXPECT_EQ(tensors[g], expected[r][step][g]);
      }
    }
  });
}

class Rollback : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(With, Rollback, ::testing::ValuesIn(registered_specs()),
                         [](const auto& test) { return spec_name(test.param); });

TEST_P(Rollback, MakesTheStepAsIfItHadNeverBeen) {
  const Model model = odd_model();
  constexpr int kRanks = 3;
  World world = make_world(kRanks), other = make_world(kRanks);
  const auto expected = train(world, model, compressing(GetParam()), 4);
  each_rank(kRanks, [&](int rank) {
    const auto r = static_cast<std::size_t>(rank);
    GradientExchange exchange(other[r], model, compressing(GetParam()));
    const auto order = backward_order(model);
    for (std::uint64_t step = 0; step < 4; ++step) {
      // An attempt with gradients that overflowed, as a loss scaler sees it, or with the same ones.
      Tensors attempt = gradients_of(model, rank, step % 2 == 0 ? step : step + 100);
      for (std::size_t g : order) exchange.submit(g, attempt[g].data());
      exchange.wait_all();
      if (step % 2 == 0) {
        EXPECT_EQ(attempt, expected[r][step]);
      }
      exchange.rollback();
      Tensors tensors = gradients_of(model, rank, step);
      run_step(exchange, order, tensors);
      EXPECT_EQ(tensors, expected[r][step]) << "step " << step;
    }
    EXPECT_EQ(exchange.statistics().steps, 4u);
  });
}

TEST(Rollback, OfHalfSubmittedStepsHangsNobody) {
  const Model model = two_gradients();
  constexpr int kRanks = 3;
  // One bucket for both gradients, and a bucket for each.
  for (std::size_t bucket_bytes : {std::size_t{1} << 20, std::size_t{1}}) {
    ExchangeOptions options = compressing("topk:ratio=0.1+ef");
    options.bucket_bytes = bucket_bytes;
    World world = make_world(kRanks), other = make_world(kRanks);
    const auto expected = train(world, model, options, 3);
    each_rank(kRanks, [&](int rank) {
      const auto r = static_cast<std::size_t>(rank);
      GradientExchange exchange(other[r], model, options);
      for (std::uint64_t step = 0; step < 3; ++step) {
        Tensors attempt = gradients_of(model, rank, step);
        const Tensors before = attempt;
        std::vector<Work> works;
        // Rank 0 submits all, rank 1 a half, rank 2 nothing.
        for (std::size_t g = 0; g < 2 - r; ++g)
          works.push_back(exchange.submit(g, attempt[g].data()));
        if (rank == 1) exchange.rollback();
        for (const Work& work : works) {
          const Status status = outcome(work);
          EXPECT_EQ(status.code(), Code::Aborted) << status.to_string();
          EXPECT_NE(status.message().find("rolled the step back"), std::string::npos);
        }
        EXPECT_EQ(attempt, before);
        if (rank != 1) exchange.rollback();
        Tensors tensors = gradients_of(model, rank, step);
        run_step(exchange, backward_order(model), tensors);
        EXPECT_EQ(tensors, expected[r][step]) << "step " << step;
      }
    });
  }
}

TEST(Rollback, OnOneRankAndCommitOnAnotherIsAMismatch) {
  const Model model = two_gradients();
  World world = make_world(2);
  each_rank(2, [&](int rank) {
    GradientExchange exchange(world[static_cast<std::size_t>(rank)], model, apart());
    Tensors tensors = gradients_of(model, rank, 0);
    for (std::size_t g : backward_order(model)) exchange.submit(g, tensors[g].data());
    exchange.wait_all();
    rank == 0 ? exchange.commit() : exchange.rollback();
    tensors = gradients_of(model, rank, 1);
    const Tensors before = tensors;
    std::vector<Work> works;
    for (std::size_t g : backward_order(model))
      works.push_back(exchange.submit(g, tensors[g].data()));
    for (const Work& work : works)
      has_words(outcome(work), Code::Mismatch, {"step 0", "step 1", "rank 0", "rank 1"});
    EXPECT_EQ(tensors, before);
    has_words(thrown_by([&] { exchange.wait_all(); }), Code::Mismatch, {"step 0"});
    has_words(thrown_by([&] { exchange.commit(); }), Code::Mismatch, {"step 0"});
    exchange.rollback();
  });
}

TEST(ExchangeSteps, ExchangesOfOneCommunicatorGoSideBySide) {
  const Model model = odd_model();
  constexpr int kRanks = 3;
  World world = make_world(kRanks), other = make_world(kRanks);
  const auto sparse = train(world, model, compressing("topk:ratio=0.1+ef"), 3);
  const auto coded = train(world, model, compressing("qint:bits=4+ef"), 3);
  each_rank(kRanks, [&](int rank) {
    const auto r = static_cast<std::size_t>(rank);
    GradientExchange a(other[r], model, compressing("topk:ratio=0.1+ef"));
    GradientExchange b(other[r], model, compressing("qint:bits=4+ef"));
    for (std::uint64_t step = 0; step < 3; ++step) {
      Tensors first = gradients_of(model, rank, step), second = first;
      for (std::size_t g : backward_order(model)) {
        a.submit(g, first[g].data());
        b.submit(g, second[g].data());
      }
      float one = 1;  // and the communicator itself goes on
      EXPECT_TRUE(succeeds(other[r].all_reduce(&one, &one, 1, DType::Float32)));
      EXPECT_EQ(one, kRanks);
      b.commit();
      a.commit();
      EXPECT_EQ(first, sparse[r][step]);
      EXPECT_EQ(second, coded[r][step]);
    }
  });
}

TEST(ExchangeSteps, ExchangesOfThreadsAreMadeAndUsedAtOnce) {
  const Model model = two_gradients();
  constexpr int kRanks = 2, kThreads = 3;
  World world = make_world(kRanks), other = make_world(kRanks);
  const auto expected = train(world, model, apart(), 3);
  each_rank(kRanks, [&](int rank) {
    const auto r = static_cast<std::size_t>(rank);
    std::vector<Communicator> groups;
    for (int t = 0; t < kThreads; ++t) groups.push_back(other[r].split(0));
    each_rank(kThreads, [&](int thread) {
      for (int life = 0; life < 4; ++life) {
        GradientExchange exchange(groups[static_cast<std::size_t>(thread)], model, apart());
        for (std::uint64_t step = 0; step < 3; ++step) {
          Tensors tensors = gradients_of(model, rank, step);
          run_step(exchange, backward_order(model), tensors);
          EXPECT_EQ(tensors, expected[r][step]);
        }
      }
    });
  });
}

TEST(ExchangePlan, CoversEveryGradientInPriorityOfItsPosition) {
  const Model model = odd_model();
  World world = make_world(2);
  each_rank(2, [&](int rank) {
    GradientExchange exchange(world[static_cast<std::size_t>(rank)], model,
                              compressing("qint:bits=4+ef"));
    std::set<std::string> keys;
    std::size_t bytes = 0;
    for (const SliceReport& slice : exchange.plan()) {
      EXPECT_EQ(slice.compressor, make_compressor("qint:bits=4+ef")->spec());
      bytes += slice.bytes;
      std::stringstream list(slice.keys);
      for (std::string key; std::getline(list, key, ',');) {
        keys.insert(key);
        const auto g = std::find_if(model.begin(), model.end(), [&](const Gradient& candidate) {
          return candidate.key == key;
        });
        ASSERT_NE(g, model.end()) << key;
        EXPECT_LE(slice.priority, g->position);
      }
    }
    std::size_t expected = 0;
    for (const Gradient& g : model) expected += g.count * 4;
    EXPECT_EQ(bytes, expected);
    EXPECT_EQ(keys.size(), model.size());
  });
}

TEST(ExchangePlan, HashIsEqualForEqualPlansAndDiffersOtherwise) {
  World world = make_world(1);
  const auto hash = [&](const Model& model, const ExchangeOptions& options) {
    return GradientExchange(world[0], model, options).plan_hash();
  };
  const auto usual = hash(odd_model(), compressing("fp16"));
  EXPECT_EQ(usual, hash(odd_model(), compressing("fp16")));
  EXPECT_NE(usual, hash(odd_model(), compressing("bf16")));
  EXPECT_NE(usual, hash(odd_model(DType::Float16), compressing("fp16")));
  ExchangeOptions seed = compressing("fp16");
  seed.seed = 1;
  EXPECT_NE(usual, hash(odd_model(), seed));
  ExchangeOptions sum = compressing("fp16");
  sum.op = ReduceOp::Sum;
  EXPECT_NE(usual, hash(odd_model(), sum));
  Model moved = odd_model();
  moved[3].position = 9;
  EXPECT_NE(usual, hash(moved, compressing("fp16")));
}

}  // namespace
}  // namespace tersum::test
