// The plan of one step.
#ifndef BATON_ENGINE_SCHEDULER_OUTPUT_H_
#define BATON_ENGINE_SCHEDULER_OUTPUT_H_

#include <cstdint>
#include <vector>

#include "engine/ids.h"
#include "engine/sequence.h"
#include "engine/step_io.h"

namespace baton {

enum class StepType { kPrefill, kDecode };

// Consecutive rows of one sequence.
struct ScheduledRows {
  SequenceMetadata* sequence = nullptr;
  uint32_t generation = 0;  // Of the sequence when launched.
  RowSource source = RowSource::kHost;
  uint32_t first_position = 0;  // kHost: absolute. kDevice: the device knows.
  // kHost: exactly. kDevice: at most: the newest token and the drafts to
  // verify.
  uint32_t num_rows = 0;
  // Draws the token behind its last row; from kDevice, behind each row.
  bool draws = false;
  uint32_t num_drafts = 0;  // To make behind the draw.
  // Rows that score the prompt token behind them: so many from this position
  // on.
  uint32_t first_scored = 0;
  uint32_t num_scored = 0;

  uint32_t num_logits_rows() const {
    if (source == RowSource::kDevice) return num_rows;
    return num_scored + (draws ? 1 : 0);
  }
};

// Immutable once scheduled. Reused from step to step, so that planning does not
// allocate.
struct SchedulerOutput {
  EpochId epoch;
  StepId step;
  StepType type = StepType::kDecode;
  std::vector<ScheduledRows> rows;
  uint32_t num_rows = 0;     // Over all sequences, at most.
  uint32_t preemptions = 0;  // Since the step before.

  bool empty() const { return rows.empty(); }
};

}  // namespace baton

#endif  // BATON_ENGINE_SCHEDULER_OUTPUT_H_
