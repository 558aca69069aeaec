#include "engine/step_batch.h"

#include <span>
#include <vector>

#include "gtest/gtest.h"

namespace baton {
namespace {

class CorrectRowsTest : public testing::Test {
 protected:
  CorrectRowsTest() : slots_(3), batch_(16, 4, 16) {
    input_.block_tables = {7, 8, 9};
  }

  // A sequence whose slot has `num_tokens` tokens, the newest 100, and drafts
  // 101, 102...
  void AddDeviceRows(uint32_t slot, uint32_t num_tokens, uint32_t num_drafts,
                     const StepRows& wanted) {
    slots_[slot].num_tokens = num_tokens;
    slots_[slot].newest_token = 100;
    slots_[slot].num_drafts = num_drafts;
    for (uint32_t i = 0; i < num_drafts; ++i) slots_[slot].drafts[i] = 101 + i;
    input_.rows.push_back(wanted);
    input_.rows.back().slot = slot;
    input_.rows.back().source = RowSource::kDevice;
    input_.rows.back().sample = static_cast<int32_t>(input_.rows.size()) - 1;
  }

  std::vector<uint32_t> Tokens() const {
    const ForwardBatch view = batch_.view();
    return {view.token_ids.begin(), view.token_ids.end()};
  }
  std::vector<int32_t> Positions() const {
    const ForwardBatch view = batch_.view();
    return {view.positions.begin(), view.positions.end()};
  }

  StepInput input_;
  std::vector<SequenceSlot> slots_;
  StepBatch batch_;
  std::vector<CorrectedRows> corrected_;
};

TEST_F(CorrectRowsTest, LogitsOfScoredRowsComeBehindThoseOfAllDraws) {
  input_.token_ids = {1, 2, 3, 4, 5};
  input_.rows = {{.num_rows = 4,
                  .end_position = 100,
                  .first_scored_row = 1,
                  .num_scored = 2,
                  .sample = 0},
                 {.num_rows = 1,
                  .first_token = 4,
                  .end_position = 100,
                  .num_scored = 1,
                  .first_score = 2}};
  AddDeviceRows(2, 10, 1, {.num_rows = 2, .end_position = 100});
  CorrectRows(input_, slots_, &batch_, &corrected_);
  const std::span<const int32_t> rows = batch_.logits_rows();
  EXPECT_EQ(std::vector(rows.begin(), rows.end()),
            (std::vector<int32_t>{3, 5, 6, 1, 2, 4}));
  EXPECT_EQ(corrected_[0].first_logits_row, 0u);
  EXPECT_EQ(corrected_[2].first_logits_row, 1u);
}

TEST_F(CorrectRowsTest, RowsFromTheHostAreAsPlanned) {
  input_.token_ids = {1, 2, 3};
  input_.rows = {{.first_position = 5, .num_rows = 2, .end_position = 100},
                 {.first_position = 0,
                  .num_rows = 1,
                  .first_token = 2,
                  .end_position = 100,
                  .first_block = 1,
                  .prompt_tokens = 4,
                  .sample = 0}};
  CorrectRows(input_, slots_, &batch_, &corrected_);
  EXPECT_EQ(Tokens(), (std::vector<uint32_t>{1, 2, 3}));
  EXPECT_EQ(Positions(), (std::vector<int32_t>{5, 6, 0}));
  EXPECT_EQ(corrected_[0].num_draws, 0u);
  EXPECT_EQ(corrected_[1].num_draws, 1u);
  EXPECT_EQ(corrected_[1].draw_position, 1u);
  const ForwardBatch view = batch_.view();
  ASSERT_EQ(view.logits_rows.size(), 1u);
  EXPECT_EQ(view.logits_rows[0], 2);
  ASSERT_EQ(view.sequences.size(), 2u);
  EXPECT_EQ(view.sequences[1].block_table[0], 8u);
  EXPECT_EQ(view.sequences[1].prompt_tokens, 4);
}

TEST_F(CorrectRowsTest, RowsFromTheDeviceBeginAtTheNewestToken) {
  AddDeviceRows(1, 10, 2, {.num_rows = 3, .end_position = 100});
  CorrectRows(input_, slots_, &batch_, &corrected_);
  EXPECT_EQ(Tokens(), (std::vector<uint32_t>{100, 101, 102}));
  EXPECT_EQ(Positions(), (std::vector<int32_t>{9, 10, 11}));
  EXPECT_EQ(corrected_[0].num_draws, 3u);
  EXPECT_EQ(corrected_[0].draw_position, 10u);
  EXPECT_EQ(batch_.view().logits_rows.size(), 3u);
}

TEST_F(CorrectRowsTest, NoMoreRowsThanPlannedThanDraftsAndThanPlaces) {
  const auto rows_of = [&](uint32_t drafts, uint32_t planned, uint32_t end) {
    input_.rows.clear();
    AddDeviceRows(0, 10, drafts, {.num_rows = planned, .end_position = end});
    CorrectRows(input_, slots_, &batch_, &corrected_);
    return corrected_[0].num_rows;
  };
  EXPECT_EQ(rows_of(5, 3, 100), 3u);
  EXPECT_EQ(rows_of(1, 6, 100), 2u);
  EXPECT_EQ(rows_of(5, 6, 12), 3u);  // Positions 9, 10 and 11.
  EXPECT_EQ(rows_of(5, 6, 10), 1u);
  EXPECT_EQ(rows_of(5, 6, 9), 0u);  // The newest token was the last.
  EXPECT_TRUE(batch_.view().sequences.empty());
}

TEST_F(CorrectRowsTest, AnEndedSlotHasNoRows) {
  AddDeviceRows(2, 10, 2, {.num_rows = 3, .end_position = 100});
  slots_[2].ended = true;
  CorrectRows(input_, slots_, &batch_, &corrected_);
  EXPECT_EQ(corrected_[0].num_rows, 0u);
  EXPECT_EQ(corrected_[0].num_draws, 0u);
  EXPECT_EQ(batch_.num_rows(), 0u);
}

}  // namespace
}  // namespace baton
