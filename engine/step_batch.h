// The rows of a step as the model takes them, and the kernel that corrects
// them.
#ifndef BATON_ENGINE_STEP_BATCH_H_
#define BATON_ENGINE_STEP_BATCH_H_

#include <cstdint>
#include <span>
#include <vector>

#include "engine/model_runner.h"
#include "engine/sequence_slot.h"
#include "engine/step_io.h"

namespace baton {

// Grows row by row; vectors keep their capacity.
class StepBatch {
 public:
  StepBatch(uint32_t max_rows, uint32_t max_sequences,
            uint32_t max_logits_rows);

  void Clear();
  // The rows added next are of the sequence of `rows`, whose blocks are in
  // `input`; borrows them.
  void StartSequence(const StepInput& input, const StepRows& rows);
  void AddRow(uint32_t token_id, uint32_t position);
  // Of the newest row, or of another one.
  void WantLogits() { WantLogits(num_rows() - 1); }
  void WantLogits(uint32_t row);

  uint32_t num_rows() const { return static_cast<uint32_t>(token_ids_.size()); }
  uint32_t num_logits_rows() const {
    return static_cast<uint32_t>(logits_rows_.size());
  }
  std::span<const int32_t> logits_rows() const { return logits_rows_; }
  ForwardBatch view() const;

 private:
  std::vector<uint32_t> token_ids_;
  std::vector<int32_t> positions_;
  std::vector<SequenceRows> sequences_;
  std::vector<int32_t> logits_rows_;
};

// What became of one StepRows.
struct CorrectedRows {
  uint32_t first_row = 0;  // In the batch.
  uint32_t num_rows = 0;
  uint32_t first_position = 0;
  uint32_t first_logits_row = 0;  // One a draw.
  uint32_t num_draws = 0;
  // Absolute, of the first draw.
  uint32_t draw_position = 0;
};

// Length correction: puts the rows of `input` into `batch`, those from the
// device where their slots say: the newest token, then as many drafts as there
// are, were asked for, and have a place. Logits are wanted of the rows that
// draw, then of those that score a prompt token, in the order of input.scores.
void CorrectRows(const StepInput& input, std::span<const SequenceSlot> slots,
                 StepBatch* batch, std::vector<CorrectedRows>* corrected);

}  // namespace baton

#endif  // BATON_ENGINE_STEP_BATCH_H_
