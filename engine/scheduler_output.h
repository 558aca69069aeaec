// The plan of one step.
#ifndef BATON_ENGINE_SCHEDULER_OUTPUT_H_
#define BATON_ENGINE_SCHEDULER_OUTPUT_H_

#include <cstdint>
#include <vector>

#include "engine/ids.h"
#include "engine/sequence.h"

namespace baton {

enum class StepType { kPrefill, kDecode };

// Consecutive rows of one sequence.
struct ScheduledRows {
  SequenceMetadata* sequence = nullptr;
  uint32_t generation = 0;      // Of the sequence when launched.
  uint32_t first_position = 0;  // Absolute.
  uint32_t num_rows = 0;
};

// One token to draw. It names its row of logits, so that one prompt can start
// several samples, and a step can give logits without sampling.
struct SampleRow {
  SequenceMetadata* sequence = nullptr;
  uint32_t generation = 0;
  uint32_t logits_row = 0;  // Index into SchedulerOutput::logits_rows.
  uint32_t position = 0;    // Of the token drawn.
};

// Immutable once scheduled. Reused from step to step, so that planning does not
// allocate.
struct SchedulerOutput {
  EpochId epoch;
  StepId step;
  StepType type = StepType::kDecode;
  std::vector<ScheduledRows> rows;
  std::vector<int32_t> logits_rows;  // Rows of the batch whose logits count.
  std::vector<SampleRow> samples;
  uint32_t num_rows = 0;  // Over all sequences.
  uint32_t preemptions = 0;

  bool empty() const { return rows.empty(); }
};

}  // namespace baton

#endif  // BATON_ENGINE_SCHEDULER_OUTPUT_H_
