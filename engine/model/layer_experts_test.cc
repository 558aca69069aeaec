#include "engine/model/layer_experts.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

namespace baton {
namespace {

MlpWeights Weights(int width) {
  const std::vector<float> values(2 * width * 16, 1);
  return {.gate_up = PackedWeight::FromF32(values.data(), 2 * width, 16, 16),
          .down = PackedWeight::FromF32(values.data(), 16, width, width)};
}

TEST(LayerExpertsTest, FindsWhatIsHere) {
  LayerExperts experts(3);
  EXPECT_EQ(experts.num_experts(), 3);
  EXPECT_EQ(experts.Find(1), nullptr);
  experts.Put(1, Weights(5));
  experts.Put(2, Weights(6));
  ASSERT_NE(experts.Find(1), nullptr);
  EXPECT_EQ(experts.Find(1)->width(), 5);
  const MlpWeights* const second = experts.Find(2);
  experts.Drop(1);
  EXPECT_EQ(experts.Find(1), nullptr);
  EXPECT_EQ(experts.Find(2), second);
  experts.Put(1, Weights(7));
  EXPECT_EQ(experts.Find(1)->width(), 7);
}

TEST(LayerExpertsTest, AMoveTakesThemAlong) {
  LayerExperts experts(2);
  experts.Put(1, Weights(5));
  const MlpWeights* const weights = experts.Find(1);
  const LayerExperts moved = std::move(experts);
  EXPECT_EQ(moved.Find(1), weights);
  EXPECT_EQ(LayerExperts().num_experts(), 0);
}

TEST(LayerExpertsDeathTest, TwiceHereOrGoneIsOurBug) {
  LayerExperts experts(2);
  experts.Put(1, Weights(5));
  EXPECT_DEATH(experts.Put(1, Weights(5)), "expert 1 is here");
  EXPECT_DEATH(experts.Drop(0), "expert 0 is not here");
  EXPECT_DEATH(experts.Put(2, Weights(5)), "CHECK failed");
}

}  // namespace
}  // namespace baton
