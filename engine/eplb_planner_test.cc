#include "engine/eplb_planner.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <random>
#include <set>
#include <vector>

#include "engine/expert_load_window.h"
#include "engine/expert_placement.h"
#include "gtest/gtest.h"

namespace baton {
namespace {

bool Always() { return true; }

ExpertLayout Layout(uint32_t experts, uint32_t ranks, uint32_t redundant) {
  const auto layout = MakeExpertLayout(1, experts, ranks, redundant);
  EXPECT_TRUE(layout.ok()) << layout.status();
  return *layout;
}

// Draws of `num_steps` steps from weights that `weight(step, expert)` gives.
std::vector<uint32_t> Draw(
    uint32_t num_experts, uint32_t num_steps, uint32_t draws, uint32_t seed,
    const std::function<double(uint32_t, uint32_t)>& weight) {
  std::mt19937 random(seed);
  std::vector<uint32_t> counts(size_t{num_steps} * num_experts);
  for (uint32_t step = 0; step < num_steps; ++step) {
    std::vector<double> weights(num_experts);
    for (uint32_t e = 0; e < num_experts; ++e) weights[e] = weight(step, e);
    std::discrete_distribution<uint32_t> expert(weights.begin(), weights.end());
    for (uint32_t i = 0; i < draws; ++i) {
      ++counts[size_t{step} * num_experts + expert(random)];
    }
  }
  return counts;
}

double Skewed(uint32_t, uint32_t expert) { return 1.0 / (1 + expert); }

EplbLayerPlan Plan(const ExpertLoads& loads, const ExpertPlacement& present,
                   const EplbOptions& options = {},
                   const std::function<bool()>& time_left = Always) {
  EplbLayerPlan plan =
      EplbPlanner(options).PlanLayer(loads, present, 0, time_left);
  EXPECT_TRUE(CheckExperts(present.layout(), plan.experts).ok());
  EXPECT_LE(plan.planned_ratio, plan.present_ratio);
  EXPECT_GE(plan.planned_ratio, 0.9999);
  uint32_t moved = 0;
  for (size_t s = 0; s < plan.experts.size(); ++s) {
    moved += plan.experts[s] != present.experts(0)[s] ? 1 : 0;
  }
  EXPECT_EQ(plan.moved_slots, moved);
  return plan;
}

// The least ratio of all placements, by trying them: ranks in any order give
// the same, so each rank's set of experts is at least the one before's.
class BruteForce {
 public:
  BruteForce(const ExpertLayout& layout, const ExpertLoads& loads)
      : layout_(layout), loads_(loads) {
    for (uint32_t set = 0; set < 1u << layout.num_experts; ++set) {
      if (static_cast<uint32_t>(__builtin_popcount(set)) ==
          layout.slots_per_rank) {
        sets_.push_back(set);
      }
    }
  }
  double Best() {
    Try(0);
    return best_;
  }

 private:
  void Try(size_t first) {
    if (chosen_.size() == layout_.num_ranks) return Evaluate();
    for (size_t i = first; i < sets_.size(); ++i) {
      chosen_.push_back(sets_[i]);
      Try(i);
      chosen_.pop_back();
    }
  }
  void Evaluate() {
    std::vector<uint32_t> experts;
    for (const uint32_t set : chosen_) {
      for (uint32_t e = 0; e < layout_.num_experts; ++e) {
        if ((set >> e & 1) != 0) experts.push_back(e);
      }
    }
    if (!CheckExperts(layout_, experts).ok()) return;
    best_ = std::min(best_, PlacementRatio(layout_, loads_, experts));
  }

  const ExpertLayout layout_;
  const ExpertLoads& loads_;
  std::vector<uint32_t> sets_, chosen_;
  double best_ = std::numeric_limits<double>::infinity();
};

TEST(EplbPlannerTest, RatioIsOfTheFullestRankInEachStep) {
  const ExpertLayout layout = Layout(3, 2, 1);
  const std::vector<uint32_t> counts = {4, 0, 0, 0, 0, 8};
  // Steps of loads 2|2 and 0|8: 10 of an ideal 2 + 4.
  EXPECT_DOUBLE_EQ(PlacementRatio(layout, ExpertLoads(counts, 3), {0, 1, 0, 2}),
                   10.0 / 6);
  EXPECT_EQ(PlacementRatio(layout, ExpertLoads({}, 3), {0, 1, 0, 2}), 1);
}

TEST(EplbPlannerTest, SmallLayersComeNearTheBestOfAllPlacements) {
  struct Shape {
    uint32_t experts, ranks, redundant;
  };
  double sum = 0;
  int num_plans = 0, num_best = 0;
  for (const Shape& shape : {Shape{4, 2, 0}, Shape{4, 2, 2}, Shape{3, 3, 3},
                             Shape{5, 2, 3}, Shape{6, 3, 0}, Shape{6, 3, 3},
                             Shape{2, 4, 2}, Shape{3, 4, 5}, Shape{5, 3, 4}}) {
    const ExpertLayout layout =
        Layout(shape.experts, shape.ranks, shape.redundant);
    for (uint32_t seed = 0; seed < 40; ++seed) {
      std::mt19937 random(seed);
      std::vector<uint32_t> counts(shape.experts);
      for (uint32_t& c : counts) c = 1000 * (1 + random() % 20);
      const ExpertLoads loads(counts, shape.experts);
      const EplbLayerPlan plan = Plan(loads, ExpertPlacement(layout));
      const double planned = PlacementRatio(layout, loads, plan.experts);
      const double best = BruteForce(layout, loads).Best();
      ASSERT_LE(planned, 1.25 * best + 1e-6)
          << shape.experts << " experts, " << shape.ranks << " ranks, "
          << shape.redundant << " copies, seed " << seed;
      sum += planned / best;
      ++num_plans;
      num_best += planned < best + 0.006 ? 1 : 0;
    }
  }
  RecordProperty("mean_over_best", std::to_string(sum / num_plans));
  EXPECT_LE(sum / num_plans, 1.01);
  EXPECT_GE(num_best, num_plans * 3 / 4);
}

TEST(EplbPlannerTest, BalancesASkewedLayer) {
  const ExpertPlacement present(Layout(64, 8, 8));
  const auto counts = Draw(64, 64, 2000, 1, Skewed);
  const EplbLayerPlan plan = Plan(ExpertLoads(counts, 64), present);
  EXPECT_GT(plan.present_ratio, 2);
  EXPECT_LT(plan.planned_ratio, 1.002);
  EXPECT_EQ(plan.num_groups, 1u);
}

TEST(EplbPlannerTest, WhatMovesInTimeIsPlannedByGroups) {
  // Experts 0..7 work in even blocks of steps, 8..15 in odd ones: by sums any
  // halves are equal, by steps a rank needs four of each.
  const auto weight = [](uint32_t step, uint32_t e) {
    return (step / 8 % 2 == 0) == (e < 8) ? 1.0 : 0.0;
  };
  const ExpertPlacement present(Layout(16, 4, 0));
  const auto counts = Draw(16, 128, 1600, 2, weight);
  const EplbLayerPlan plan = Plan(ExpertLoads(counts, 16), present);
  EXPECT_EQ(plan.num_groups, EplbPlanner::kNumGroups);
  EXPECT_GT(plan.present_ratio, 1.9);
  EXPECT_LT(plan.planned_ratio, 1.03);
}

TEST(EplbPlannerTest, ABalancedLayerStays) {
  const ExpertPlacement present(Layout(16, 4, 0));
  const auto counts =
      Draw(16, 200, 1000, 3, [](uint32_t, uint32_t) { return 1.0; });
  const ExpertLoads loads(counts, 16);
  EXPECT_GT(
      PlacementRatio(present.layout(), loads,
                     {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}),
      1.02);  // By chance, step by step.
  const EplbLayerPlan plan = Plan(loads, present, {.balanced_ratio = 1.02});
  EXPECT_EQ(plan.moved_slots, 0u);
  EXPECT_LE(plan.present_ratio, 1.02);
}

TEST(EplbPlannerTest, FreshDrawsOfTheSameMoveNothing) {
  ExpertPlacement present(Layout(64, 8, 8));
  const auto first = Draw(64, 100, 4000, 4, Skewed);
  ASSERT_TRUE(
      present.SetLayer(0, Plan(ExpertLoads(first, 64), present).experts).ok());
  const auto second = Draw(64, 100, 4000, 5, Skewed);
  EXPECT_EQ(Plan(ExpertLoads(second, 64), present, {.balanced_ratio = 1.02})
                .moved_slots,
            0u);
}

TEST(EplbPlannerTest, ALayerWithoutLoadOrWithoutChoiceStays) {
  const ExpertPlacement present(Layout(4, 2, 2));
  EXPECT_EQ(Plan(ExpertLoads({}, 4), present).moved_slots, 0u);
  const std::vector<uint32_t> idle(40);
  EXPECT_EQ(Plan(ExpertLoads(idle, 4), present).moved_slots, 0u);
  const std::vector<uint32_t> counts = {9, 1, 1, 1};
  EXPECT_EQ(Plan(ExpertLoads(counts, 4), ExpertPlacement(Layout(4, 1, 0)))
                .moved_slots,
            0u);
  EXPECT_EQ(Plan(ExpertLoads(counts, 4), ExpertPlacement(Layout(4, 2, 4)))
                .moved_slots,
            0u);
}

TEST(EplbPlannerTest, OneBusyExpertIsCopiedToEveryRank) {
  const ExpertPlacement present(Layout(4, 3, 2));
  const std::vector<uint32_t> counts = {0, 0, 7000, 0};
  const EplbLayerPlan plan = Plan(ExpertLoads(counts, 4), present);
  EXPECT_NEAR(plan.planned_ratio, 1, 1e-6);
  EXPECT_EQ(std::count(plan.experts.begin(), plan.experts.end(), 2u), 3);
}

TEST(EplbPlannerTest, WithoutTimeNothingMoves) {
  const ExpertPlacement present(Layout(64, 8, 8));
  const auto counts = Draw(64, 64, 2000, 6, Skewed);
  const EplbLayerPlan plan =
      Plan(ExpertLoads(counts, 64), present, {}, [] { return false; });
  EXPECT_EQ(plan.moved_slots, 0u);
  EXPECT_GT(plan.present_ratio, 2);
}

TEST(EplbPlannerTest, AnyTimeGivesAPlanAndMoreTimeABetterOne) {
  const ExpertPlacement present(Layout(32, 8, 8));
  const auto counts = Draw(32, 64, 2000, 7, [](uint32_t step, uint32_t e) {
    return 1.0 / (1 + (e + step / 4) % 32);
  });
  const ExpertLoads loads(counts, 32);
  double first = 0, last = 0;
  for (int budget = 0; budget < 300; budget += 7) {
    int left = budget;
    const EplbLayerPlan plan =
        Plan(loads, present, {}, [&left] { return left-- > 0; });
    if (budget == 0) first = plan.planned_ratio;
    last = plan.planned_ratio;
  }
  EXPECT_LT(last, 0.8 * first);
}

TEST(EplbPlannerTest, RandomLayersGiveValidPlansThatRepeat) {
  std::mt19937 random(8);
  for (int round = 0; round < 200; ++round) {
    const uint32_t experts = 1 + random() % 12;
    const uint32_t ranks = 1 + random() % 8;
    const uint32_t least = DefaultRedundantExperts(experts, ranks);
    const uint32_t slots_per_rank = (experts + least) / ranks;
    const uint32_t more = random() % (experts - slots_per_rank + 1) * ranks;
    const ExpertLayout layout = Layout(experts, ranks, least + more);
    std::vector<uint32_t> counts(experts * (1 + random() % 40));
    for (uint32_t& c : counts) c = random() % 4 == 0 ? 0 : random() % 3000;
    const ExpertLoads loads(counts, experts);
    const ExpertPlacement present(layout);
    EXPECT_EQ(Plan(loads, present).experts, Plan(loads, present).experts);
  }
}

TEST(EplbPlannerTest, TenThousandReplansStayValid) {
  ExpertPlacement present(Layout(8, 4, 4));
  std::mt19937 random(9);
  for (int round = 0; round < 10000; ++round) {
    std::vector<uint32_t> counts(8);
    for (uint32_t& c : counts) c = random() % 1000;
    const EplbLayerPlan plan = Plan(ExpertLoads(counts, 8), present);
    ASSERT_TRUE(present.SetLayer(0, plan.experts).ok());
  }
  EXPECT_EQ(present.version(), 10000u);
}

}  // namespace
}  // namespace baton
