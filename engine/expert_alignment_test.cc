#include "engine/expert_alignment.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "engine/expert_placement.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace baton {
namespace {

using ::testing::ElementsAre;

using Experts = std::vector<uint32_t>;

ExpertLayout Layout(uint32_t experts, uint32_t ranks, uint32_t redundant) {
  const auto layout = MakeExpertLayout(1, experts, ranks, redundant);
  EXPECT_TRUE(layout.ok()) << layout.status();
  return *layout;
}

Experts Random(const ExpertLayout& layout, std::mt19937* random) {
  Experts experts(layout.num_slots());
  do {
    for (uint32_t& e : experts) e = (*random)() % layout.num_experts;
  } while (!CheckExperts(layout, experts).ok());
  return experts;
}

// The sets of experts of the ranks, in order.
std::vector<Experts> Sets(const ExpertLayout& layout, const Experts& experts) {
  std::vector<Experts> sets;
  for (uint32_t r = 0; r < layout.num_ranks; ++r) {
    const auto first = experts.begin() + r * layout.slots_per_rank;
    sets.emplace_back(first, first + layout.slots_per_rank);
    std::sort(sets.back().begin(), sets.back().end());
  }
  return sets;
}

int NumMoved(const Experts& a, const Experts& b) {
  int moved = 0;
  for (size_t s = 0; s < a.size(); ++s) moved += a[s] != b[s] ? 1 : 0;
  return moved;
}

TEST(ExpertAlignmentTest, WhatStaysOnItsRankKeepsItsSlot) {
  const ExpertLayout layout = Layout(6, 2, 0);
  EXPECT_THAT(
      AlignSlots(layout, Experts{0, 1, 2, 3, 4, 5}, Experts{4, 2, 0, 5, 1, 3}),
      ElementsAre(0, 4, 2, 3, 1, 5));
}

TEST(ExpertAlignmentTest, RanksInAnotherOrderMoveNothing) {
  const ExpertLayout layout = Layout(30, 10, 10);
  const ExpertPlacement placement(layout);
  const Experts present(placement.experts(0).begin(),
                        placement.experts(0).end());
  std::mt19937 random(1);
  Experts ranks(10), shuffled;
  std::iota(ranks.begin(), ranks.end(), 0);
  std::shuffle(ranks.begin(), ranks.end(), random);
  for (const uint32_t r : ranks) {
    shuffled.insert(shuffled.end(), present.begin() + r * 4,
                    present.begin() + (r + 1) * 4);
  }
  ASSERT_NE(shuffled, present);
  EXPECT_EQ(AlignRanks(layout, present, shuffled), present);
}

TEST(ExpertAlignmentTest, RanksWithNothingInCommonTakeWhatIsLeft) {
  const ExpertLayout layout = Layout(3, 3, 0);
  EXPECT_THAT(AlignRanks(layout, Experts{0, 1, 2}, Experts{1, 2, 0}),
              ElementsAre(0, 1, 2));
  const ExpertLayout copies = Layout(2, 3, 1);
  EXPECT_THAT(AlignRanks(copies, Experts{0, 0, 1}, Experts{1, 1, 0}),
              ElementsAre(0, 1, 1));
}

TEST(ExpertAlignmentTest, AlignmentKeepsThePlacement) {
  std::mt19937 random(2);
  const ExpertLayout layout = Layout(6, 4, 6);
  int before = 0, after = 0;
  for (int round = 0; round < 300; ++round) {
    const Experts present = Random(layout, &random);
    const Experts experts = Random(layout, &random);
    const Experts slots = AlignSlots(layout, present, experts);
    EXPECT_EQ(Sets(layout, slots), Sets(layout, experts));
    EXPECT_LE(NumMoved(present, slots), NumMoved(present, experts));
    const Experts ranks = AlignRanks(layout, present, experts);
    std::vector<Experts> sorted = Sets(layout, ranks),
                         expected = Sets(layout, experts);
    std::sort(sorted.begin(), sorted.end());
    std::sort(expected.begin(), expected.end());
    EXPECT_EQ(sorted, expected);
    before += NumMoved(present, slots);
    after += NumMoved(present, AlignSlots(layout, present, ranks));
  }
  EXPECT_LT(after, 0.8 * before);
}

}  // namespace
}  // namespace baton
