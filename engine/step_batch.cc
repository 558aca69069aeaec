#include "engine/step_batch.h"

#include <algorithm>

#include "base/logging.h"

namespace baton {
namespace {

// Rows that a sequence from the device has in this step.
uint32_t RowsOf(const StepRows& rows, const SequenceSlot& slot) {
  const uint32_t base = slot.num_tokens - 1;
  if (slot.ended || base >= rows.end_position) return 0;
  return std::min(
      {rows.num_rows, 1 + slot.num_drafts, rows.end_position - base});
}

CorrectedRows AddHostRows(const StepInput& input, const StepRows& rows,
                          StepBatch* batch) {
  CorrectedRows corrected;
  corrected.first_position = rows.first_position;
  corrected.num_rows = rows.num_rows;
  for (uint32_t i = 0; i < rows.num_rows; ++i) {
    batch->AddRow(input.token_ids[rows.first_token + i],
                  rows.first_position + i);
  }
  if (rows.sample < 0) return corrected;
  batch->WantLogits();
  corrected.num_draws = 1;
  corrected.draw_position = rows.first_position + rows.num_rows;
  return corrected;
}

CorrectedRows AddDeviceRows(const StepRows& rows, const SequenceSlot& slot,
                            StepBatch* batch) {
  CorrectedRows corrected;
  corrected.first_position = slot.num_tokens - 1;
  corrected.num_rows = RowsOf(rows, slot);
  for (uint32_t i = 0; i < corrected.num_rows; ++i) {
    batch->AddRow(i == 0 ? slot.newest_token : slot.drafts[i - 1],
                  corrected.first_position + i);
    batch->WantLogits();
  }
  corrected.num_draws = corrected.num_rows;
  corrected.draw_position = slot.num_tokens;
  return corrected;
}

}  // namespace

StepBatch::StepBatch(uint32_t max_rows, uint32_t max_sequences,
                     uint32_t max_logits_rows) {
  token_ids_.reserve(max_rows);
  positions_.reserve(max_rows);
  sequences_.reserve(max_sequences);
  logits_rows_.reserve(max_logits_rows);
}

void StepBatch::Clear() {
  token_ids_.clear();
  positions_.clear();
  sequences_.clear();
  logits_rows_.clear();
}

void StepBatch::StartSequence(const StepInput& input, const StepRows& rows) {
  sequences_.push_back(
      {.first_row = static_cast<int32_t>(num_rows()),
       .num_rows = 0,
       .block_table = input.block_tables.data() + rows.first_block,
       .prompt_tokens = static_cast<int32_t>(rows.prompt_tokens)});
}

void StepBatch::AddRow(uint32_t token_id, uint32_t position) {
  token_ids_.push_back(token_id);
  positions_.push_back(static_cast<int32_t>(position));
  ++sequences_.back().num_rows;
}

void StepBatch::WantLogits(uint32_t row) {
  logits_rows_.push_back(static_cast<int32_t>(row));
}

ForwardBatch StepBatch::view() const {
  return {.token_ids = token_ids_,
          .positions = positions_,
          .sequences = sequences_,
          .logits_rows = logits_rows_};
}

void CorrectRows(const StepInput& input, std::span<const SequenceSlot> slots,
                 StepBatch* batch, std::vector<CorrectedRows>* corrected) {
  batch->Clear();
  corrected->clear();
  for (const StepRows& rows : input.rows) {
    const SequenceSlot& slot = slots[rows.slot];
    const uint32_t first_row = batch->num_rows();
    const uint32_t first_logits_row = batch->num_logits_rows();
    if (rows.source == RowSource::kHost || RowsOf(rows, slot) > 0) {
      batch->StartSequence(input, rows);
    }
    corrected->push_back(rows.source == RowSource::kHost
                             ? AddHostRows(input, rows, batch)
                             : AddDeviceRows(rows, slot, batch));
    corrected->back().first_row = first_row;
    corrected->back().first_logits_row = first_logits_row;
  }
  for (size_t i = 0; i < input.rows.size(); ++i) {
    const uint32_t first_scored =
        (*corrected)[i].first_row + input.rows[i].first_scored_row;
    for (uint32_t j = 0; j < input.rows[i].num_scored; ++j) {
      batch->WantLogits(first_scored + j);
    }
  }
}

}  // namespace baton
