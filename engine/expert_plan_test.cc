#include "engine/expert_plan.h"

#include <cstdint>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace baton {
namespace {

using ::testing::ElementsAre;

constexpr ExpertLayout kLayout = {
    .num_layers = 3, .num_experts = 4, .num_ranks = 2, .slots_per_rank = 2};

// Layer 0 is even, 1 somewhat uneven, 2 worse.
ExpertPlanJob Uneven() {
  return {.present = ExpertPlacement(kLayout),
          .loads = {{10, 10, 10, 10}, {30, 20, 10, 20}, {40, 40, 0, 0}}};
}

TEST(ExpertPlanTest, WorstLayersComeFirstAndEvenOnesStay) {
  const ExpertPlan plan = PlanExperts(Uneven(), {}, [] { return true; });
  EXPECT_THAT(plan.present_ratios, ElementsAre(1, 1.25, 2));
  EXPECT_THAT(plan.planned_ratios, ElementsAre(1, 1, 1));
  ASSERT_EQ(plan.moves.size(), 2u);
  EXPECT_EQ(plan.moves[0].layer, 2u);
  EXPECT_EQ(plan.moves[1].layer, 1u);
  EXPECT_EQ(plan.moved_slots(), 4u);
  EXPECT_EQ(plan.unplanned_layers, 0u);
  for (const ExpertLayerMove& move : plan.moves) {
    EXPECT_TRUE(CheckExperts(kLayout, move.experts).ok());
  }
}

TEST(ExpertPlanTest, LayersThatNeedItLeastGoWithoutWhenTimeIsUp) {
  bool left = true;
  const ExpertPlan plan = PlanExperts(
      Uneven(), {.max_improvements = 0},
      [&left, asked = 0]() mutable { return left && ++asked <= 3; });
  ASSERT_GE(plan.unplanned_layers, 1u);
  for (const ExpertLayerMove& move : plan.moves) EXPECT_EQ(move.layer, 2u);
  left = false;
  const ExpertPlan none = PlanExperts(Uneven(), {}, [&left] { return left; });
  EXPECT_EQ(none.unplanned_layers, 3u);
  EXPECT_TRUE(none.moves.empty());
  EXPECT_EQ(none.planned_ratios, none.present_ratios);
}

TEST(ExpertPlanTest, WithoutLoadsNothingMoves) {
  const ExpertPlanJob job = {.present = ExpertPlacement(kLayout),
                             .loads = {{0, 0, 0, 0}, {}, {}}};
  const ExpertPlan plan = PlanExperts(job, {}, [] { return true; });
  EXPECT_TRUE(plan.moves.empty());
  EXPECT_THAT(plan.present_ratios, ElementsAre(1, 1, 1));
}

}  // namespace
}  // namespace baton
