#include "engine/eplb_loads.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "engine/expert_placement.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace baton {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

ExpertLayout Layout(uint32_t experts, uint32_t ranks, uint32_t redundant) {
  const auto layout = MakeExpertLayout(1, experts, ranks, redundant);
  EXPECT_TRUE(layout.ok()) << layout.status();
  return *layout;
}

// Every way to give an expert at least one slot and at most one a rank.
void ForAllCopies(
    const ExpertLayout& layout,
    const std::function<void(const std::vector<uint32_t>&)>& visit) {
  std::vector<uint32_t> copies;
  const std::function<void(uint32_t)> give = [&](uint32_t left) {
    if (copies.size() == layout.num_experts) {
      if (left == 0) visit(copies);
      return;
    }
    for (uint32_t n = 1; n <= std::min(left, layout.num_ranks); ++n) {
      copies.push_back(n);
      give(left - n);
      copies.pop_back();
    }
  };
  give(layout.num_slots());
}

template <size_t kGroups>
float MostPerReplica(const std::vector<GroupLoad<kGroups>>& loads,
                     const std::vector<uint32_t>& copies) {
  GroupLoad<kGroups> most = {};
  for (size_t e = 0; e < loads.size(); ++e) {
    MaxTo(&most, Times(loads[e], 1.0f / copies[e]));
  }
  return Sum(most);
}

TEST(EplbLoadsTest, SumsAndProductsAreOfEveryGroup) {
  GroupLoad<16> a, b;
  std::iota(a.begin(), a.end(), 1.0f);
  b.fill(2);
  EXPECT_EQ(Sum(a), 136);
  EXPECT_EQ(Dot(a, b), 272);
  AddTo(&b, a);
  EXPECT_EQ(b[15], 18);
  EXPECT_EQ(Sum(GroupLoad<1>{7}), 7);
}

TEST(EplbLoadsTest, GreedyCopiesOfOneGroupAreTheBest) {
  std::mt19937 random(1);
  for (const ExpertLayout& layout :
       {Layout(4, 2, 2), Layout(4, 4, 4), Layout(3, 3, 6), Layout(5, 3, 4),
        Layout(2, 4, 2), Layout(6, 3, 0)}) {
    for (int round = 0; round < 50; ++round) {
      std::vector<GroupLoad<1>> loads(layout.num_experts);
      for (auto& load : loads) load[0] = random() % 100;
      const std::vector<uint32_t> copies = GreedyCopies(layout, loads);
      float best = std::numeric_limits<float>::infinity();
      bool possible = false;
      ForAllCopies(layout, [&](const std::vector<uint32_t>& other) {
        best = std::min(best, MostPerReplica(loads, other));
        possible |= other == copies;
      });
      EXPECT_TRUE(possible);
      EXPECT_FLOAT_EQ(MostPerReplica(loads, copies), best);
    }
  }
}

TEST(EplbLoadsTest, GreedyCopiesOfManyGroupsComeNearTheBest) {
  std::mt19937 random(2);
  double sum = 0;
  for (int round = 0; round < 100; ++round) {
    const ExpertLayout layout = Layout(5, 3, 4);
    std::vector<GroupLoad<16>> loads(5);
    for (auto& load : loads) {
      for (float& l : load) l = random() % 100;
    }
    float best = std::numeric_limits<float>::infinity();
    ForAllCopies(layout, [&](const std::vector<uint32_t>& copies) {
      best = std::min(best, MostPerReplica(loads, copies));
    });
    const float most = MostPerReplica(loads, GreedyCopies(layout, loads));
    EXPECT_LE(most, 1.2 * best);
    sum += most / best;
  }
  EXPECT_LE(sum / 100, 1.02);
}

TEST(EplbLoadsTest, CopiesWithoutLoadGoInOrder) {
  const ExpertLayout layout = Layout(3, 3, 3);
  const std::vector<GroupLoad<1>> loads = {{0}, {0}, {9}};
  EXPECT_THAT(GreedyCopies(layout, loads), ElementsAre(2, 1, 3));
  const std::vector<GroupLoad<1>> idle(3);
  const auto copies = GreedyCopies(layout, idle);
  EXPECT_EQ(std::accumulate(copies.begin(), copies.end(), 0u), 6u);
}

TEST(EplbLoadsTest, AThresholdBoundsTheLoadOfAReplica) {
  const ExpertLayout layout = Layout(8, 4, 8);
  std::mt19937 random(3);
  for (int round = 0; round < 200; ++round) {
    std::vector<GroupLoad<1>> loads(8);
    float mean = 0;
    for (auto& load : loads) mean += load[0] = random() % 100;
    mean /= 4;
    const float threshold = 0.3f + 0.01f * (random() % 70);
    const auto copies = ThresholdCopies(layout, loads, threshold);
    uint32_t fewest = 0;
    for (const auto& load : loads) {
      fewest += std::clamp(
          static_cast<uint32_t>(std::ceil(load[0] / (threshold * mean))), 1u,
          4u);
    }
    EXPECT_EQ(copies.empty(), fewest > 16);
    if (copies.empty()) continue;
    EXPECT_EQ(std::accumulate(copies.begin(), copies.end(), 0u), 16u);
    for (size_t e = 0; e < 8; ++e) {
      EXPECT_GE(copies[e], 1u);
      EXPECT_LE(copies[e], 4u);
      if (copies[e] < 4) {
        EXPECT_LE(loads[e][0] / copies[e], threshold * mean * 1.0001f);
      }
    }
  }
}

TEST(EplbLoadsTest, AThresholdKeepsHotExpertsInFewLargeReplicas) {
  const ExpertLayout layout = Layout(6, 4, 2);  // A rank's mean: 25.
  const std::vector<GroupLoad<1>> loads = {{48}, {22}, {10}, {9}, {8}, {3}};
  EXPECT_THAT(ThresholdCopies(layout, loads, 1), ElementsAre(2, 2, 1, 1, 1, 1));
  EXPECT_THAT(GreedyCopies(layout, loads), ElementsAre(3, 1, 1, 1, 1, 1));
  EXPECT_THAT(ThresholdCopies(layout, loads, 0.5f), IsEmpty());
}

}  // namespace
}  // namespace baton
