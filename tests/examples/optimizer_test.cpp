#include "mnist/optimizer.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace {

TEST(LearningRate, RisesInTheWarmUpAndFallsToNothing) {
  const mnist::LearningRate rate(0.8, 4, 12);
  EXPECT_FLOAT_EQ(rate.at(0), 0.2f);
  EXPECT_FLOAT_EQ(rate.at(3), 0.8f);
  EXPECT_FLOAT_EQ(rate.at(4), 0.8f);
  EXPECT_FLOAT_EQ(rate.at(8), 0.4f);
  EXPECT_FLOAT_EQ(rate.at(11), 0.1f);
  EXPECT_EQ(rate.at(12), 0.0f);
}

TEST(LearningRate, IsPositiveThroughoutARunThatIsAllWarmUp) {
  const mnist::LearningRate rate(1.0, 3, 3);
  EXPECT_FLOAT_EQ(rate.at(0), 1.0f / 3.0f);
  EXPECT_FLOAT_EQ(rate.at(2), 1.0f);
  EXPECT_EQ(rate.at(3), 0.0f);
}

TEST(Sgd, AccumulatesMomentumOfEachTensorAlone) {
  mnist::Sgd sgd(0.5f, {2, 1});
  std::vector<float> value{1.0f, 2.0f};
  std::vector<float> other{10.0f};
  const std::vector<float> gradient{4.0f, -8.0f};
  sgd.apply(0, 0.25f, gradient, value);  // velocity 4, -8
  EXPECT_EQ(value, (std::vector<float>{0.0f, 4.0f}));
  sgd.apply(0, 0.5f, gradient, value);  // velocity 6, -12
  EXPECT_EQ(value, (std::vector<float>{-3.0f, 10.0f}));
  sgd.apply(1, 1.0f, std::vector<float>{1.0f}, other);
  EXPECT_EQ(other, std::vector<float>{9.0f});
}

}  // namespace
