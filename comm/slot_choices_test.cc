#include "comm/slot_choices.h"

#include <gtest/gtest.h>

#include <vector>

#include "comm/slot_table.h"

namespace baton {
namespace {

using Ints = std::vector<int32_t>;

struct Chosen {
  Ints offsets;
  Ints choices;
};

Chosen Choose(const SlotTable& table, const Ints& experts, int top_k,
              int rank) {
  const ExpertSlots slots = table.view();
  const int tokens = static_cast<int>(experts.size()) / top_k;
  const int num_slots = static_cast<int>(slots.slots.size());
  SlotChooser chooser({.num_experts = static_cast<int>(slots.first.size()) - 1,
                       .top_k = top_k,
                       .hidden_size = 1,
                       .max_tokens = tokens},
                      num_slots);
  Chosen chosen = {Ints(num_slots + 1, 7), Ints(experts.size(), 7)};
  chooser.Choose(Dense(experts.data(), tokens, top_k), slots, rank,
                 {chosen.offsets, chosen.choices});
  return chosen;
}

TEST(SlotChoicesTest, SortsChoicesBySlotAndThenByToken) {
  const Chosen chosen =
      Choose(SlotTable(3, {2, 0, 1}), {0, 1, 2, 0, 1, 2}, 2, 0);
  EXPECT_EQ(chosen.offsets, (Ints{0, 2, 4, 6}));
  EXPECT_EQ(chosen.choices, (Ints{2, 5, 0, 3, 1, 4}));
}

TEST(SlotChoicesTest, TakesReplicasInTurnFromTheRanksOwnOn) {
  // Expert 0 is in slots 0, 2 and 3.
  const SlotTable table(2, {0, 1, 0, 0});
  const Ints experts = {0, 0, 1, 0, 0, 0};
  const Chosen first = Choose(table, experts, 1, 0);
  EXPECT_EQ(first.offsets, (Ints{0, 2, 3, 5, 6}));
  EXPECT_EQ(first.choices, (Ints{0, 4, 2, 1, 5, 3}));
  const Chosen second = Choose(table, experts, 1, 4);
  EXPECT_EQ(second.offsets, (Ints{0, 1, 2, 4, 6}));
  EXPECT_EQ(second.choices, (Ints{3, 2, 0, 4, 1, 5}));
}

TEST(SlotChoicesTest, NoTokensAreNoChoices) {
  EXPECT_EQ(Choose(SlotTable::Identity(2), {}, 1, 0).offsets, (Ints{0, 0, 0}));
}

}  // namespace
}  // namespace baton
