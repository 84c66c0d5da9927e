// Checkpoints: a saved exchange goes on with the same bits; anything else is refused and changes
// nothing.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "src/exchange_support.hpp"

namespace tersum::test {
namespace {

constexpr int kRanks = 3;

class Checkpoint : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Of, Checkpoint, ::testing::ValuesIn(registered_specs()),
                         [](const auto& test) { return spec_name(test.param); });

TEST_P(Checkpoint, GoesOnWithTheSameBitsInAnotherJob) {
  const Model model = odd_model();
  const ExchangeOptions options = compressing(GetParam());
  World world = make_world(kRanks);
  const auto expected = train(world, model, options, 5);
  std::vector<Bytes> saved(kRanks);
  World first = make_world(kRanks);
  each_rank(kRanks, [&](int rank) {
    const auto r = static_cast<std::size_t>(rank);
    GradientExchange exchange(first[r], model, options);
    for (std::uint64_t step = 0; step < 3; ++step) {
      Tensors tensors = gradients_of(model, rank, step);
      run_step(exchange, backward_order(model), tensors);
    }
    saved[r] = exchange.save();
    EXPECT_EQ(saved[r], exchange.save());
  });
  first.clear();
  World second = make_world(kRanks);
  each_rank(kRanks, [&](int rank) {
    const auto r = static_cast<std::size_t>(rank);
    GradientExchange exchange(second[r], model, options);
    // It has lived a little already: all of that is replaced.
    Tensors other = gradients_of(model, rank, 77);
    run_step(exchange, backward_order(model), other);
    exchange.load(saved[r]);
    EXPECT_EQ(exchange.save(), saved[r]);
    for (std::uint64_t step = 3; step < 5; ++step) {
      Tensors tensors = gradients_of(model, rank, step);
      run_step(exchange, backward_order(model), tensors);
      EXPECT_EQ(tensors, expected[r][step]) << "step " << step;
    }
  });
}

/// An exchange of one rank with a state worth saving.
struct Alone {
  explicit Alone(const ExchangeOptions& options = compressing("topk:ratio=0.1+ef"),
                 Model gradients = odd_model())
      : model(std::move(gradients)), exchange(world[0], model, options) {
    step(0);
  }
  Tensors step(std::uint64_t number) {
    Tensors tensors = gradients_of(model, 0, number);
    run_step(exchange, backward_order(model), tensors);
    return tensors;
  }
  World world = make_world(1);
  Model model;
  GradientExchange exchange;
};

/// load() must refuse, name the reason, and change nothing.
void refused(Alone& alone, const Bytes& bytes, const std::string& word) {
  const Bytes before = alone.exchange.save();
  const Status status = thrown_by([&] { alone.exchange.load(bytes); });
  EXPECT_EQ(status.code(), Code::InvalidArgument) << status.to_string();
  EXPECT_NE(status.message().find(word), std::string::npos)
      << "'" << word << "' is missing in: " << status.message();
  EXPECT_EQ(alone.exchange.save(), before);
}

TEST(Checkpoint, DamagedBytesAreRefused) {
  Alone alone;
  const Bytes good = alone.exchange.save();
  refused(alone, {}, "cut off");
  for (std::size_t length : {std::size_t{1}, std::size_t{39}, good.size() / 2, good.size() - 1}) {
    Bytes shorter(good.begin(), good.begin() + static_cast<std::ptrdiff_t>(length));
    refused(alone, shorter, "cut off");
  }
  Bytes longer = good;
  longer.push_back(std::byte{0});
  refused(alone, longer, "longer");
  Bytes magic = good;
  magic[3] ^= std::byte{1};
  refused(alone, magic, "no checkpoint");
  alone.exchange.load(good);
}

TEST(Checkpoint, EveryChangedByteIsRefusedAndChangesNothing) {
  Alone alone;
  const Bytes good = alone.exchange.save();
  for (std::size_t i = 0; i < good.size(); i += i < 64 ? 1 : 97) {
    Bytes bad = good;
    bad[i] ^= std::byte{1} << i % 8;
    ASSERT_EQ(thrown_by([&] { alone.exchange.load(bad); }).code(), Code::InvalidArgument) << i;
    ASSERT_EQ(alone.exchange.save(), good) << i;
  }
}

TEST(Checkpoint, RanksThatAreAtDifferentStepsAfterALoadFindOut) {
  const Model model = odd_model();
  for (const int loading : {0, 1}) {
    World world = make_world(2);
    each_rank(2, [&](int rank) {
      const auto r = static_cast<std::size_t>(rank);
      GradientExchange exchange(world[r], model, compressing("topk:ratio=0.1+ef"));
      Tensors tensors = gradients_of(model, rank, 0);
      run_step(exchange, backward_order(model), tensors);
      const Bytes saved = exchange.save();
      run_step(exchange, backward_order(model), tensors);
      if (rank == loading) exchange.load(saved);  // back to step 1, alone
      const Status status = outcome(exchange.submit(0, tensors[0].data()));
      EXPECT_EQ(status.code(), Code::Mismatch) << status.to_string();
      EXPECT_NE(status.message().find("step 1"), std::string::npos) << status.message();
      EXPECT_NE(status.message().find("step 2"), std::string::npos) << status.message();
    });
  }
}

TEST(Checkpoint, OfAnotherPlanIsRefused) {
  Alone alone;
  Alone other_method(compressing("topk:ratio=0.2+ef"));
  refused(alone, other_method.exchange.save(), "another plan");
  ExchangeOptions seed = compressing("topk:ratio=0.1+ef");
  seed.seed = 1;
  refused(alone, Alone(seed).exchange.save(), "another plan");
  Model larger = odd_model();
  larger[0].count += 1;
  refused(alone, Alone(compressing("topk:ratio=0.1+ef"), larger).exchange.save(), "another plan");
}

TEST(Checkpoint, OfAnotherRankOrSizeIsRefused) {
  const Model model = odd_model();
  const ExchangeOptions options = compressing("topk:ratio=0.1+ef");
  World world = make_world(2);
  std::vector<Bytes> saved(2);
  each_rank(2, [&](int rank) {
    const auto r = static_cast<std::size_t>(rank);
    GradientExchange exchange(world[r], model, options);
    saved[r] = exchange.save();
    EXPECT_TRUE(succeeds(world[r].barrier()));
    const Status status = thrown_by([&] { exchange.load(saved[1 - r]); });
    EXPECT_EQ(status.code(), Code::InvalidArgument);
    EXPECT_NE(status.message().find("rank " + std::to_string(1 - rank) + " of 2"),
              std::string::npos)
        << status.message();
  });
  Alone alone;
  refused(alone, saved[0], "rank 0 of 2");
}

TEST(Checkpoint, IsTakenBetweenStepsOnly) {
  Alone alone;
  const Bytes good = alone.exchange.save();
  Tensors tensors = gradients_of(alone.model, 0, 1);
  alone.exchange.submit(std::size_t{0}, tensors[0].data());
  for (const Status& status : {thrown_by([&] { (void)alone.exchange.save(); }),
                               thrown_by([&] { alone.exchange.load(good); })}) {
    EXPECT_EQ(status.code(), Code::InvalidState);
    EXPECT_NE(status.message().find("commit"), std::string::npos) << status.message();
  }
  alone.exchange.rollback();
  EXPECT_EQ(alone.exchange.save(), good);
}

}  // namespace
}  // namespace tersum::test
