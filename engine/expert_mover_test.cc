#include "engine/expert_mover.h"

#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace baton {
namespace {

using enum ExpertMovePhase;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr ExpertLayout kLayout = {
    .num_layers = 3, .num_experts = 4, .num_ranks = 2, .slots_per_rank = 2};

// Rank 0 of two, which has experts 0 and 1 of each layer at first.
class ExpertMoverTest : public testing::Test {
 protected:
  // A plan of layers 0, 1 and 2, whose versions start at `first`, in batches of
  // two; rank 0 has experts 2 and 1 in each layer then.
  void AddPlan(uint64_t plan, uint64_t first) {
    for (uint32_t layer = 0; layer < 3; ++layer) {
      ASSERT_TRUE(mover_.AddMove(Move(plan, first, layer)));
    }
  }
  static RebalanceMessage Move(uint64_t plan, uint64_t first, uint32_t layer) {
    return {.kind = RebalanceKind::kMove,
            .plan = plan,
            .placement = first + layer,
            .batch_end = first + (layer < 2 ? 1 : 2),
            .plan_end = first + 2,
            .layer = layer,
            .values = {2, 1, 0, 3}};
  }
  static RebalanceMessage Abandon(uint64_t plan, uint64_t version) {
    return {
        .kind = RebalanceKind::kAbandon, .plan = plan, .placement = version};
  }
  // Step `step`, its tables, and that it is done.
  uint32_t ExpertOf(uint64_t step, uint64_t version, uint32_t layer) {
    return mover_.OnStep(step, version)->slots()[layer].experts[0];
  }

  std::vector<LayerExpert> loads_, drops_;
  ExpertMover mover_{
      {.layout = kLayout,
       .load = [this](std::vector<LayerExpert> e) { loads_ = std::move(e); },
       .drop = [this](std::vector<LayerExpert> e) { drops_ = std::move(e); }}};
};

TEST(ExpertMovePhaseTest, MovesOnlyAlongTheTable) {
  const std::set<std::pair<ExpertMovePhase, ExpertMovePhase>> legal = {
      {kIdle, kLoading},      {kLoading, kLoaded}, {kLoading, kFailed},
      {kLoading, kCancelled}, {kLoaded, kIdle},    {kLoaded, kRetiring},
      {kRetiring, kIdle},     {kFailed, kIdle},    {kCancelled, kIdle}};
  for (int from = 0; from < kNumExpertMovePhases; ++from) {
    for (int to = 0; to < kNumExpertMovePhases; ++to) {
      const std::pair edge(static_cast<ExpertMovePhase>(from),
                           static_cast<ExpertMovePhase>(to));
      EXPECT_EQ(IsLegalTransition(edge.first, edge.second),
                legal.contains(edge));
    }
  }
}

TEST_F(ExpertMoverTest, ABatchIsLoadedVotedForAndSwitchedAndTheOldGo) {
  AddPlan(1, 1);
  EXPECT_THAT(loads_, ElementsAre(LayerExpert{0, 2}, LayerExpert{1, 2}));
  EXPECT_EQ(mover_.ready_version(), 0u);
  EXPECT_TRUE(mover_.OnLoaded(true));
  EXPECT_EQ(mover_.ready_version(), 2u);
  EXPECT_EQ(ExpertOf(1, 0, 0), 0u);  // Another process is not ready.
  EXPECT_EQ(ExpertOf(2, 2, 0), 2u);
  EXPECT_EQ(ExpertOf(3, 2, 2), 0u);  // Of the next batch.
  EXPECT_THAT(drops_, IsEmpty());
  mover_.OnStepsDone(1);
  EXPECT_THAT(drops_, ElementsAre(LayerExpert{0, 0}, LayerExpert{1, 0}));
  EXPECT_THAT(loads_, ElementsAre(LayerExpert{2, 2}));
  EXPECT_EQ(mover_.closed_plan(), 0u);
  EXPECT_TRUE(mover_.OnLoaded(true));
  mover_.OnStepsDone(3);
  EXPECT_EQ(ExpertOf(4, 3, 2), 2u);
  EXPECT_THAT(drops_, ElementsAre(LayerExpert{2, 0}));  // No step was left.
  EXPECT_EQ(mover_.closed_plan(), 1u);
  EXPECT_EQ(mover_.counters().moved_layers, 3u);
}

TEST_F(ExpertMoverTest, TablesOfStepsInFlightStayWhereTheyAre) {
  AddPlan(1, 1);
  const ExpertTables* before = mover_.OnStep(1, 0);
  EXPECT_TRUE(mover_.OnLoaded(true));
  const ExpertTables* after = mover_.OnStep(2, 2);
  EXPECT_NE(before, after);
  EXPECT_EQ(before->slots()[0].experts[0], 0u);
  EXPECT_EQ(before->version(), 0u);
  EXPECT_EQ(after->slots()[0].of(2)[0], 0u);
  EXPECT_EQ(after->version(), 2u);
}

TEST_F(ExpertMoverTest, ALoadThatFailedWaitsForThePlanToBeAbandoned) {
  AddPlan(1, 1);
  EXPECT_FALSE(mover_.OnLoaded(false));
  EXPECT_EQ(mover_.ready_version(), 0u);
  EXPECT_TRUE(mover_.Abandon(Abandon(1, 0)));
  EXPECT_EQ(mover_.phase(), kIdle);
  EXPECT_EQ(mover_.closed_plan(), 1u);
  EXPECT_THAT(drops_, IsEmpty());  // None of them was there.
  EXPECT_EQ(mover_.counters().abandoned_layers, 3u);
  EXPECT_FALSE(mover_.Abandon(Abandon(1, 0)));
}

TEST_F(ExpertMoverTest, WhatWasLoadedForAnAbandonedBatchIsDropped) {
  AddPlan(1, 1);
  EXPECT_TRUE(mover_.OnLoaded(true));
  EXPECT_TRUE(mover_.Abandon(Abandon(1, 0)));
  EXPECT_THAT(drops_, ElementsAre(LayerExpert{0, 2}, LayerExpert{1, 2}));
  EXPECT_EQ(mover_.ready_version(), 0u);
  drops_.clear();
  AddPlan(2, 4);
  EXPECT_TRUE(mover_.Abandon(Abandon(2, 0)));
  EXPECT_EQ(mover_.phase(), kCancelled);
  EXPECT_EQ(mover_.closed_plan(), 1u);
  EXPECT_TRUE(mover_.OnLoaded(true));
  EXPECT_THAT(drops_, ElementsAre(LayerExpert{0, 2}, LayerExpert{1, 2}));
  EXPECT_EQ(mover_.closed_plan(), 2u);
}

TEST_F(ExpertMoverTest, ABatchThatOthersHaveReachedOutlivesItsPlan) {
  AddPlan(1, 1);
  EXPECT_TRUE(mover_.OnLoaded(true));
  EXPECT_TRUE(mover_.Abandon(Abandon(1, 2)));  // Of the batch behind it.
  EXPECT_EQ(mover_.ready_version(), 2u);
  EXPECT_EQ(ExpertOf(1, 2, 0), 2u);
  EXPECT_EQ(mover_.closed_plan(), 1u);
  EXPECT_EQ(mover_.counters().abandoned_layers, 1u);
}

// A ballot that is still under way may name one.
TEST_F(ExpertMoverTest, VersionsOfAnAbandonedPlanAreNotUsedAgain) {
  AddPlan(1, 1);
  EXPECT_TRUE(mover_.OnLoaded(true));
  EXPECT_TRUE(mover_.Abandon(Abandon(1, 0)));
  EXPECT_EQ(mover_.newest_version(), 3u);
  EXPECT_FALSE(mover_.AddMove(Move(2, 1, 0)));
  AddPlan(2, 4);
  EXPECT_TRUE(mover_.OnLoaded(true));
  EXPECT_EQ(mover_.ready_version(), 5u);
  EXPECT_EQ(ExpertOf(1, 2, 0), 0u);
  EXPECT_EQ(ExpertOf(2, 5, 0), 2u);
}

TEST_F(ExpertMoverTest, RefusesWhatIsNotTheNextMove) {
  std::vector<RebalanceMessage> bad(5, Move(1, 1, 0));
  bad[0].placement = 2;
  bad[1].plan = 2;
  bad[2].layer = 3;
  bad[3].values = {2, 1, 0, 1};  // No expert 3.
  bad[4].values = {2, 1, 0};
  for (const RebalanceMessage& move : bad) EXPECT_FALSE(mover_.AddMove(move));
  EXPECT_TRUE(mover_.AddMove(Move(1, 1, 0)));
  EXPECT_FALSE(mover_.Abandon(Abandon(1, 0)));  // Not all are here.
  RebalanceMessage other_batch = Move(1, 1, 1);
  other_batch.batch_end = 3;
  EXPECT_FALSE(mover_.AddMove(other_batch));
  RebalanceMessage same_layer = Move(1, 1, 1);
  same_layer.layer = 0;
  EXPECT_FALSE(mover_.AddMove(same_layer));
  EXPECT_FALSE(mover_.AddMove(Move(2, 2, 0)));  // Plan 1 is not over.
  EXPECT_TRUE(mover_.AddMove(Move(1, 1, 1)));
  EXPECT_TRUE(mover_.AddMove(Move(1, 1, 2)));
  EXPECT_FALSE(mover_.Abandon(Abandon(1, 1)));  // Inside of a batch.
  EXPECT_FALSE(mover_.Abandon(Abandon(1, 3)));  // The end of the plan.
  EXPECT_FALSE(mover_.Abandon(Abandon(2, 0)));
}

}  // namespace
}  // namespace baton
