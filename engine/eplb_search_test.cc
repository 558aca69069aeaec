#include "engine/eplb_search.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "engine/eplb_loads.h"
#include "engine/expert_alignment.h"
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

std::vector<uint32_t> InOrder(const ExpertLayout& layout) {
  const ExpertPlacement placement(layout);
  return {placement.experts(0).begin(), placement.experts(0).end()};
}

template <size_t kGroups>
std::vector<GroupLoad<kGroups>> RandomLoads(uint32_t experts,
                                            std::mt19937* random) {
  std::vector<GroupLoad<kGroups>> loads(experts);
  for (auto& load : loads) {
    for (float& l : load) l = (*random)() % 5 == 0 ? 0 : (*random)() % 1000;
  }
  loads[0].fill(1);
  return loads;
}

// From the definition.
template <size_t kGroups>
double RatioOf(const ExpertLayout& layout,
               const std::vector<GroupLoad<kGroups>>& loads,
               const std::vector<uint32_t>& experts) {
  double most = 0, total = 0;
  for (size_t g = 0; g < kGroups; ++g) {
    double fullest = 0;
    for (uint32_t r = 0; r < layout.num_ranks; ++r) {
      double load = 0;
      for (uint32_t i = 0; i < layout.slots_per_rank; ++i) {
        const uint32_t e = experts[r * layout.slots_per_rank + i];
        load += loads[e][g] / std::count(experts.begin(), experts.end(), e);
      }
      fullest = std::max(fullest, load);
      total += load;
    }
    most += fullest;
  }
  return most * layout.num_ranks / total;
}

std::vector<ExpertLayout> Layouts() {
  return {Layout(4, 2, 0),  Layout(4, 2, 2),  Layout(3, 3, 3),
          Layout(5, 3, 10), Layout(12, 4, 4), Layout(2, 5, 3),
          Layout(6, 3, 6),  Layout(1, 3, 2),  Layout(20, 10, 10)};
}

template <size_t kGroups>
void EveryOperationGivesAPlacementOfItsRatio() {
  std::mt19937 random(1);
  for (const ExpertLayout& layout : Layouts()) {
    for (int round = 0; round < 20; ++round) {
      const auto loads = RandomLoads<kGroups>(layout.num_experts, &random);
      const std::vector<uint32_t> present = InOrder(layout);
      EplbSearch<kGroups> search(layout, loads);
      const auto check = [&](const char* operation) {
        const std::vector<uint32_t>& experts = search.experts();
        ASSERT_TRUE(CheckExperts(layout, experts).ok()) << operation;
        EXPECT_NEAR(search.Ratio(), RatioOf(layout, loads, experts), 1e-3)
            << operation;
      };
      search.Start(present);
      check("Start");
      EXPECT_EQ(search.experts(), present);
      search.MoveCopies();
      check("MoveCopies");
      search.Improve(1, Always);
      check("Improve");
      search.Pack(GreedyCopies(layout, loads));
      check("Pack");
      search.Improve(1, Always);
      check("Improve");
    }
  }
}

TEST(EplbSearchTest, EveryOperationOnSumsGivesAPlacementOfItsRatio) {
  EveryOperationGivesAPlacementOfItsRatio<1>();
}

TEST(EplbSearchTest, EveryOperationOnGroupsGivesAPlacementOfItsRatio) {
  EveryOperationGivesAPlacementOfItsRatio<16>();
}

TEST(EplbSearchTest, PacksTheGreatestFirstToTheEmptiest) {
  const ExpertLayout layout = Layout(6, 2, 0);
  const std::vector<GroupLoad<1>> loads = {{8}, {7}, {5}, {4}, {3}, {1}};
  EplbSearch<1> search(layout, loads);
  search.Pack({1, 1, 1, 1, 1, 1});  // 8 4 3 | 7 5 1: 15 and 13.
  EXPECT_NEAR(search.Ratio(), 15.0 / 14, 1e-6);
  search.Improve(1, Always);  // 8 for 7.
  EXPECT_NEAR(search.Ratio(), 1, 1e-6);
}

TEST(EplbSearchTest, ASwapLeavesAloneWhatTimeDoesNotAllow) {
  const ExpertLayout layout = Layout(64, 8, 0);
  std::mt19937 random(2);
  const auto loads = RandomLoads<1>(64, &random);
  EplbSearch<1> search(layout, loads);
  search.Start(InOrder(layout));
  for (int budget : {0, 1, 2}) {
    search.Start(InOrder(layout));
    int left = budget;
    search.Improve(1, [&] { return left-- > 0; });
    const auto experts = AlignSlots(layout, InOrder(layout), search.experts());
    int changed = 0;
    for (uint32_t s = 0; s < 64; ++s) changed += experts[s] != s ? 1 : 0;
    EXPECT_LE(changed, 2 * budget);
    EXPECT_EQ(changed == 0, budget == 0);
  }
}

TEST(EplbSearchTest, CopiesMoveToTheHotAndTheRestStays) {
  const ExpertLayout layout = Layout(4, 2, 2);  // 0 1 2 | 3 0 1
  const std::vector<GroupLoad<1>> loads = {{10}, {1}, {1}, {8}};
  EplbSearch<1> search(layout, loads);
  const std::vector<uint32_t> present = InOrder(layout);
  search.Start(present);
  EXPECT_NEAR(search.Ratio(), 13.5 / 10, 1e-6);
  search.MoveCopies();  // Expert 1 gives a copy to 3.
  EXPECT_NEAR(search.Ratio(), 1, 1e-6);
  const auto experts = AlignSlots(layout, InOrder(layout), search.experts());
  EXPECT_EQ(std::count(experts.begin(), experts.end(), 3u), 2);
  EXPECT_EQ(experts[0], 0u);
  EXPECT_EQ(experts[2], 2u);
  EXPECT_EQ(experts[3], 3u);
  EXPECT_EQ(experts[4], 0u);
}

TEST(EplbSearchTest, AReplacementHelpsWhereNoSwapDoes) {
  // Ranks {0, 1} and {1, 2}: whichever way, expert 0 is alone on a full rank,
  // until 1 gives its second slot to it.
  const ExpertLayout layout = Layout(3, 2, 1);
  const std::vector<GroupLoad<1>> loads = {{10}, {1}, {1}};
  EplbSearch<1> search(layout, loads);
  search.Start(std::vector<uint32_t>{0, 1, 1, 2});
  search.Improve(1, Always);
  EXPECT_NEAR(search.Ratio(), 1, 1e-6);
}

TEST(EplbSearchTest, PackMakesRoomForACopyThatFitsNowhere) {
  std::mt19937 random(4);
  for (int round = 0; round < 300; ++round) {
    const uint32_t ranks = 2 + random() % 4, experts = 2 + random() % 4;
    const uint32_t per_rank = 1 + random() % experts;
    if (per_rank * ranks < experts) continue;
    const ExpertLayout layout =
        Layout(experts, ranks, per_rank * ranks - experts);
    std::vector<uint32_t> copies(experts, 1);
    for (uint32_t left = layout.num_slots() - experts; left > 0;) {
      uint32_t& n = copies[random() % experts];
      if (n == ranks) continue;
      ++n;
      --left;
    }
    const auto loads = RandomLoads<1>(experts, &random);
    EplbSearch<1> search(layout, loads);
    search.Pack(copies);
    const auto packed = search.experts();
    ASSERT_TRUE(CheckExperts(layout, packed).ok());
    for (uint32_t e = 0; e < experts; ++e) {
      EXPECT_EQ(std::count(packed.begin(), packed.end(), e), copies[e]);
    }
  }
}

}  // namespace
}  // namespace baton
