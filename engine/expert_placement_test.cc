#include "engine/expert_placement.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <random>
#include <vector>

#include "base/field_error.h"
#include "comm/slot_choices.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace baton {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

ExpertLayout Layout(uint32_t experts, uint32_t ranks,
                    std::optional<uint32_t> redundant = std::nullopt,
                    uint32_t layers = 1) {
  const auto layout = MakeExpertLayout(layers, experts, ranks, redundant);
  EXPECT_TRUE(layout.ok()) << layout.status();
  return *layout;
}

std::string ErrorOf(uint32_t experts, uint32_t ranks, uint32_t redundant) {
  const auto layout = MakeExpertLayout(1, experts, ranks, redundant);
  if (layout.ok()) return "";
  EXPECT_EQ(ErrorField(layout.status()), "num_redundant_experts");
  return std::string(layout.status().message());
}

TEST(ExpertPlacementTest, DefaultCopiesAreTheFewestThatDivide) {
  EXPECT_EQ(DefaultRedundantExperts(256, 32), 0u);
  EXPECT_EQ(DefaultRedundantExperts(256, 1), 0u);
  EXPECT_EQ(DefaultRedundantExperts(60, 32), 4u);
  EXPECT_EQ(DefaultRedundantExperts(64, 128), 64u);
  EXPECT_EQ(Layout(64, 128).slots_per_rank, 1u);
  for (uint32_t experts = 1; experts <= 12; ++experts) {
    for (uint32_t ranks = 1; ranks <= 12; ++ranks) {
      const uint32_t copies = DefaultRedundantExperts(experts, ranks);
      EXPECT_LT(copies, ranks);
      EXPECT_EQ((experts + copies) % ranks, 0u);
      EXPECT_EQ(Layout(experts, ranks).num_slots(), experts + copies);
    }
  }
}

// The slot that a rank's dispatch chooses for each of its tokens.
std::vector<uint32_t> ChosenSlots(const ExpertSlots& slots, int rank,
                                  const std::vector<int32_t>& tokens) {
  const int num_tokens = static_cast<int>(tokens.size());
  SlotChooser chooser({.num_experts = static_cast<int>(slots.first.size()) - 1,
                       .top_k = 1,
                       .hidden_size = 1,
                       .max_tokens = num_tokens},
                      static_cast<int>(slots.slots.size()));
  std::vector<int32_t> offsets(slots.slots.size() + 1);
  std::vector<int32_t> choices(tokens.size());
  chooser.Choose(Dense(tokens.data(), num_tokens, 1), slots, rank,
                 {offsets, choices});
  std::vector<uint32_t> chosen(tokens.size());
  for (uint32_t slot = 0; slot < slots.slots.size(); ++slot) {
    for (int i = offsets[slot]; i < offsets[slot + 1]; ++i) {
      chosen[choices[i]] = slot;
    }
  }
  return chosen;
}

TEST(ExpertPlacementTest, ADispatchTakesItsViewAndChoosesTheSameSlots) {
  ExpertPlacement placement(Layout(3, 2, 1, 2));
  ASSERT_TRUE(placement.SetLayer(1, std::vector<uint32_t>{2, 1, 0, 1}).ok());
  const std::vector<int32_t> tokens = {1, 0, 1, 2, 1};
  for (uint32_t layer = 0; layer < 2; ++layer) {
    for (int rank = 0; rank < 2; ++rank) {
      std::vector<uint32_t> turns(3);
      std::vector<uint32_t> expected;
      for (const int32_t expert : tokens) {
        expected.push_back(
            placement.ChooseSlot(layer, expert, rank, turns[expert]++));
      }
      EXPECT_EQ(ChosenSlots(placement.view(layer), rank, tokens), expected);
    }
  }
}

TEST(ExpertPlacementTest, CopiesThatNoLayoutHasNameTheFlag) {
  EXPECT_THAT(ErrorOf(256, 32, 31), HasSubstr("do not divide by 32 ranks"));
  EXPECT_THAT(ErrorOf(60, 32, 0), HasSubstr("fewest copies that do: 4"));
  EXPECT_EQ(ErrorOf(3, 2, 3), "");  // Each expert on each rank: the most.
  EXPECT_THAT(ErrorOf(3, 2, 5), HasSubstr("at most 3"));
  EXPECT_THAT(ErrorOf(8, 1, 8), HasSubstr("at most 0"));
  EXPECT_THAT(ErrorOf(256, 2, UINT32_MAX - 1), HasSubstr("at most 256"));
}

TEST(ExpertPlacementTest, StartsInOrderThenCopiesFromTheFront) {
  const ExpertPlacement placement(Layout(5, 2, 3, 2));
  EXPECT_EQ(placement.version(), 0u);
  for (uint32_t layer = 0; layer < 2; ++layer) {
    EXPECT_THAT(placement.experts(layer), ElementsAre(0, 1, 2, 3, 4, 0, 1, 2));
    EXPECT_THAT(placement.slots(layer, 0), ElementsAre(0, 5));
    EXPECT_THAT(placement.slots(layer, 2), ElementsAre(2, 7));
    EXPECT_THAT(placement.slots(layer, 4), ElementsAre(4));
  }
}

TEST(ExpertPlacementTest, EveryLayoutStartsValid) {
  for (uint32_t experts = 1; experts <= 6; ++experts) {
    for (uint32_t ranks = 1; ranks <= 6; ++ranks) {
      for (uint32_t copies = 0; copies <= experts * (ranks - 1); ++copies) {
        if ((experts + copies) % ranks != 0) continue;
        const ExpertPlacement placement(Layout(experts, ranks, copies));
        EXPECT_TRUE(CheckExperts(placement.layout(), placement.experts(0)).ok())
            << experts << " experts, " << ranks << " ranks, " << copies;
      }
    }
  }
}

TEST(ExpertPlacementTest, ALayerThatMayNotBeIsRefusedAndChangesNothing) {
  ExpertPlacement placement(Layout(4, 2, 2, 2));
  const auto refusal = [&](std::vector<uint32_t> experts) {
    const absl::Status status = placement.SetLayer(1, experts);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(refusal({0, 1, 2, 3, 0}), HasSubstr("5 slots, not 6"));
  EXPECT_THAT(refusal({0, 1, 2, 3, 4, 0}), HasSubstr("slot 4"));
  EXPECT_THAT(refusal({0, 1, 0, 3, 2, 1}), HasSubstr("0 twice on rank 0"));
  EXPECT_THAT(refusal({0, 1, 2, 0, 1, 2}), HasSubstr("no slot has expert 3"));
  EXPECT_THAT(placement.experts(1), ElementsAre(0, 1, 2, 3, 0, 1));
  EXPECT_EQ(placement.version(), 0u);
}

TEST(ExpertPlacementTest, SettingALayerLeavesTheOthersAndCountsUp) {
  ExpertPlacement placement(Layout(4, 2, 2, 3));
  ASSERT_TRUE(
      placement.SetLayer(1, std::vector<uint32_t>{3, 2, 1, 0, 3, 1}).ok());
  EXPECT_EQ(placement.version(), 1u);
  EXPECT_THAT(placement.experts(0), ElementsAre(0, 1, 2, 3, 0, 1));
  EXPECT_THAT(placement.experts(1), ElementsAre(3, 2, 1, 0, 3, 1));
  EXPECT_THAT(placement.experts(2), ElementsAre(0, 1, 2, 3, 0, 1));
  EXPECT_THAT(placement.slots(1, 0), ElementsAre(3));
  EXPECT_THAT(placement.slots(1, 1), ElementsAre(2, 5));
  EXPECT_THAT(placement.slots(1, 3), ElementsAre(0, 4));
}

TEST(ExpertPlacementTest, ReplicasTakeTurnsAndSourcesStartApart) {
  const ExpertPlacement placement(Layout(2, 3, 4));  // All on all ranks.
  for (uint32_t rows = 0; rows <= 10; ++rows) {
    std::vector<uint32_t> total(6);
    for (uint32_t source = 0; source < 3; ++source) {
      std::vector<uint32_t> sent(6);
      for (uint32_t turn = 0; turn < rows; ++turn) {
        const uint32_t slot = placement.ChooseSlot(0, 1, source, turn);
        ASSERT_EQ(placement.experts(0)[slot], 1u);
        ++sent[slot];
        ++total[slot];
      }
      for (const uint32_t slot : placement.slots(0, 1)) {
        EXPECT_GE(sent[slot], rows / 3);
        EXPECT_LE(sent[slot], (rows + 2) / 3);
      }
    }
    // The odd rows of three sources fall on three replicas.
    for (const uint32_t slot : placement.slots(0, 1)) {
      EXPECT_EQ(total[slot], rows);
    }
  }
  EXPECT_EQ(placement.ChooseSlot(0, 0, UINT32_MAX, UINT32_MAX),
            placement.slots(0, 0)[(2ull * UINT32_MAX) % 3]);
}

TEST(ExpertPlacementTest, AMoveTakesFromItsOwnRankWhereItCan) {
  const ExpertPlacement from(Layout(4, 2, 2));  // 0 1 2 | 3 0 1
  const std::vector<uint32_t> to = {2, 1, 3, 3, 0, 2};
  EXPECT_THAT(DiffLayer(from, 0, to),
              ElementsAre(SlotMove{.slot = 0, .expert = 2, .source_slot = 2},
                          SlotMove{.slot = 2, .expert = 3, .source_slot = 3},
                          SlotMove{.slot = 5, .expert = 2, .source_slot = 2}));
  EXPECT_TRUE(DiffLayer(from, 0, from.experts(0)).empty());
}

TEST(ExpertPlacementTest, HoldersShareTheSending) {
  // Expert 0 is on the first four of eight ranks, then on all: one copy each.
  ExpertPlacement from(Layout(5, 8, 3));
  ASSERT_TRUE(
      from.SetLayer(0, std::vector<uint32_t>{0, 0, 0, 0, 1, 2, 3, 4}).ok());
  std::vector<uint32_t> sends(8);
  const std::vector<uint32_t> to = {1, 2, 3, 4, 0, 0, 0, 0};
  for (const SlotMove& move : DiffLayer(from, 0, to)) {
    EXPECT_EQ(from.experts(0)[move.source_slot], move.expert);
    ++sends[move.source_slot];
  }
  EXPECT_THAT(sends, ElementsAre(1, 1, 1, 1, 1, 1, 1, 1));
}

TEST(ExpertPlacementTest, AppliedMovesGiveTheOtherPlacement) {
  std::mt19937 random(1);
  const ExpertLayout layout = Layout(6, 4, 6);
  ExpertPlacement from(layout);
  for (int round = 0; round < 300; ++round) {
    std::vector<uint32_t> to(layout.num_slots());
    do {
      for (uint32_t& e : to) e = random() % 6;
    } while (!CheckExperts(layout, to).ok());
    std::vector<uint32_t> applied(from.experts(0).begin(),
                                  from.experts(0).end());
    for (const SlotMove& move : DiffLayer(from, 0, to)) {
      EXPECT_NE(applied[move.slot], move.expert);
      EXPECT_EQ(from.experts(0)[move.source_slot], move.expert);
      const auto holders = from.slots(0, move.expert);
      const bool local =
          std::any_of(holders.begin(), holders.end(), [&](uint32_t slot) {
            return layout.rank_of(slot) == layout.rank_of(move.slot);
          });
      EXPECT_EQ(layout.rank_of(move.source_slot) == layout.rank_of(move.slot),
                local);
      applied[move.slot] = move.expert;
    }
    EXPECT_EQ(applied, to);
    ASSERT_TRUE(from.SetLayer(0, to).ok());
  }
  EXPECT_EQ(from.version(), 300u);
}

TEST(ExpertPlacementTest, TheExpertsOfRanksAreThoseOfTheirSlotsEachOnce) {
  const ExpertLayout layout = {
      .num_layers = 2, .num_experts = 4, .num_ranks = 4, .slots_per_rank = 2};
  ExpertPlacement placement(layout);
  const std::vector<uint32_t> moved = {0, 1, 3, 2, 2, 3, 0, 1};
  ASSERT_TRUE(placement.SetLayer(1, moved).ok());
  EXPECT_EQ(ExpertsOfRanks(placement, 1, 2),
            (std::vector<std::vector<uint32_t>>{{0, 1, 2, 3}, {2, 3}}));
  EXPECT_EQ(ExpertsOfRanks(placement, 3, 1),
            (std::vector<std::vector<uint32_t>>{{2, 3}, {0, 1}}));
}

}  // namespace
}  // namespace baton
