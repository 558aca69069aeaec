#include "engine/expert_rebalance.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace baton {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr ExpertLayout kLayout = {
    .num_layers = 2, .num_experts = 4, .num_ranks = 2, .slots_per_rank = 2};
constexpr uint32_t kInterval = 40;  // The first plan behind step 10.

// Two processes of a rank each, whose messages arrive at once.
class ExpertRebalanceTest : public testing::Test {
 protected:
  ExpertRebalanceOptions Options(uint32_t p) {
    return {
        .epoch = EpochId(7),
        .num_processes = 2,
        .process = p,
        .mover = {.layout = kLayout,
                  .first_rank = p,
                  .load = [this, p](auto e) { loads_[p] = std::move(e); },
                  .drop = [](auto) {}},
        .interval = kInterval,
        .window_steps = 16,
        .max_layers_in_flight = 2,
        .send =
            [this, p](uint32_t to, std::string bytes) {
              EXPECT_NE(to, p);
              EXPECT_TRUE(cut_ || both_[to].OnMessage(p, bytes));
              sent_.push_back(std::move(bytes));
            },
        .plan = [this](ExpertPlanJob job) { jobs_.push_back(std::move(job)); }};
  }
  // The 4 experts of a layer get rows as 40 : 40 : 0 : 0.
  void TakeStep(uint64_t version = 0) {
    for (uint32_t p = 0; p < 2; ++p) {
      const auto slots = both_[p].OnStep(version);
      std::vector<uint32_t> rows;
      for (const ExpertSlots& layer : slots) {
        for (uint32_t i = 0; i < 2; ++i) {
          rows.push_back(layer.experts[2 * p + i] < 2 ? 40 : 0);
        }
      }
      both_[p].OnStepRows(0, rows);
    }
  }
  void TakeSteps(int count) {
    for (int i = 0; i < count; ++i) TakeStep();
  }
  void Plan() {
    ASSERT_FALSE(jobs_.empty());
    both_[0].OnPlanned(PlanExperts(jobs_.back(), {}, [] { return true; }));
    jobs_.clear();
  }

  std::vector<LayerExpert> loads_[2];
  std::vector<std::string> sent_;
  std::vector<ExpertPlanJob> jobs_;
  bool cut_ = false;
  ExpertRebalance both_[2] = {ExpertRebalance(Options(0)),
                              ExpertRebalance(Options(1))};
};

TEST_F(ExpertRebalanceTest, LoadsOfEachLayerAreOfTheSameStepsAndMerged) {
  TakeSteps(10);
  EXPECT_EQ(sent_.size(), 1u);  // Layer 0, of process 1.
  EXPECT_THAT(jobs_, IsEmpty());
  TakeStep();
  ASSERT_EQ(jobs_.size(), 1u);
  EXPECT_THAT(jobs_[0].loads, ElementsAre(ElementsAre(400, 400, 0, 0),
                                          ElementsAre(440, 440, 0, 0)));
  TakeSteps(38);
  EXPECT_EQ(sent_.size(), 2u);
  TakeStep();
  EXPECT_EQ(sent_.size(), 3u);  // An interval later.
}

TEST_F(ExpertRebalanceTest, AllProcessesSwitchWhenTheSlowestIsReady) {
  TakeSteps(11);
  Plan();
  EXPECT_EQ(both_[0].counters().plans, 1u);
  EXPECT_EQ(loads_[0].size(), 2u);  // One expert of each layer changes places.
  EXPECT_EQ(loads_[1].size(), 2u);
  both_[0].OnLoaded(true);
  EXPECT_EQ(both_[0].placement_version(), 2u);
  EXPECT_EQ(both_[1].placement_version(), 0u);
  TakeStep();
  EXPECT_EQ(both_[0].mover().tables().version(), 0u);
  both_[1].OnLoaded(true);
  TakeStep(2);
  for (const ExpertRebalance& rebalance : both_) {
    EXPECT_EQ(rebalance.mover().tables().version(), 2u);
    EXPECT_EQ(rebalance.mover().closed_plan(), 1u);
  }
}

TEST_F(ExpertRebalanceTest, OneThatFailsAbandonsThePlanForAll) {
  TakeSteps(11);
  Plan();
  both_[0].OnLoaded(true);
  both_[1].OnLoaded(false);
  EXPECT_EQ(both_[0].counters().abandoned_plans, 1u);
  EXPECT_EQ(both_[0].placement_version(), 0u);
  EXPECT_EQ(both_[1].mover().closed_plan(), 1u);
  TakeSteps(40);
  Plan();  // The next.
  both_[0].OnLoaded(true);
  both_[1].OnLoaded(true);
  EXPECT_EQ(both_[0].placement_version(), 4u);
  EXPECT_EQ(both_[1].placement_version(), 4u);
}

TEST_F(ExpertRebalanceTest, OfTwoThatFailTheFirstIsHeard) {
  TakeSteps(11);
  Plan();
  cut_ = true;
  both_[1].OnLoaded(false);
  const std::string failed = sent_.back();
  cut_ = false;
  both_[0].OnLoaded(false);
  EXPECT_TRUE(both_[0].OnMessage(1, failed));
  EXPECT_EQ(both_[0].counters().abandoned_plans, 1u);
  EXPECT_EQ(both_[1].mover().closed_plan(), 1u);
}

TEST_F(ExpertRebalanceTest, NoPlanIsMadeBeforeTheOneBeforeIsOver) {
  TakeSteps(11);
  Plan();
  TakeSteps(40);  // Nothing is loaded meanwhile.
  EXPECT_THAT(jobs_, IsEmpty());
  EXPECT_EQ(both_[0].counters().rounds, 2u);
  EXPECT_EQ(both_[0].counters().skipped_rounds, 1u);
}

TEST_F(ExpertRebalanceTest, ARoundWhileOneIsPlannedIsSkipped) {
  TakeSteps(51);
  EXPECT_EQ(jobs_.size(), 1u);
  EXPECT_EQ(both_[0].counters().skipped_rounds, 1u);
}

TEST_F(ExpertRebalanceTest, EvenLoadsGiveNoPlan) {
  TakeSteps(11);
  both_[0].OnPlanned({});
  EXPECT_EQ(both_[0].counters().plans, 0u);
  EXPECT_EQ(both_[0].counters().balanced_plans, 1u);
  TakeSteps(40);
  EXPECT_EQ(jobs_.size(), 2u);
}

TEST_F(ExpertRebalanceTest, RefusesAndCountsWhatIsNotForIt) {
  const RebalanceMessage loads = {
      .epoch = EpochId(7), .round = 1, .layer = 0, .values = {1, 2, 3, 4}};
  const RebalanceMessage abandon = {.kind = RebalanceKind::kAbandon,
                                    .epoch = EpochId(7),
                                    .plan = 1,
                                    .placement = 0};
  RebalanceMessage old = loads;
  old.epoch = EpochId(6);
  RebalanceMessage failed = abandon;
  failed.kind = RebalanceKind::kFailed;
  EXPECT_FALSE(both_[0].OnMessage(1, "garbage"));
  EXPECT_FALSE(both_[0].OnMessage(1, EncodeRebalance(old)));
  EXPECT_FALSE(both_[0].OnMessage(1, EncodeRebalance(abandon)));
  EXPECT_FALSE(both_[0].OnMessage(1, EncodeRebalance(failed)));
  EXPECT_FALSE(both_[0].OnMessage(0, EncodeRebalance(loads)));
  EXPECT_FALSE(both_[1].OnMessage(0, EncodeRebalance(loads)));
  EXPECT_EQ(both_[0].counters().dropped_messages, 5u);
  EXPECT_EQ(both_[1].counters().dropped_messages, 1u);
  EXPECT_TRUE(both_[0].OnMessage(1, EncodeRebalance(loads)));
}

TEST_F(ExpertRebalanceTest, OffItOnlyGivesTables) {
  ExpertRebalanceOptions options = Options(0);
  options.interval = 0;
  ExpertRebalance off(options);
  for (int i = 0; i < 200; ++i) {
    EXPECT_EQ(off.OnStep(0).size(), 2u);
    off.OnStepRows(0, std::vector<uint32_t>{1, 2, 3, 4});
  }
  EXPECT_THAT(jobs_, IsEmpty());
  EXPECT_THAT(sent_, IsEmpty());
}

TEST(StepsPerLoadRowTest, ALayersRowsFitAMessage) {
  EXPECT_EQ(StepsPerLoadRow(256, 1000), 16u);
  EXPECT_EQ(StepsPerLoadRow(256, 1), 16u);
  for (const uint32_t experts : {1u, 512u, 20000u, 32000u}) {
    for (const uint32_t steps : {1u, 16u, 1000u, 100000u}) {
      const uint32_t per_row = StepsPerLoadRow(experts, steps);
      const uint64_t rows = (steps + per_row - 1) / per_row + 1;
      EXPECT_LE(rows * experts, kMaxRebalanceValues) << experts << ' ' << steps;
    }
  }
}

}  // namespace
}  // namespace baton
