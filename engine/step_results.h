// What came of a step's rows of one sequence.
#ifndef BATON_ENGINE_STEP_RESULTS_H_
#define BATON_ENGINE_STEP_RESULTS_H_

#include <cstdint>
#include <span>

#include "engine/step_io.h"
#include "kernels/sample.h"

namespace baton {

// What they drew and scored, borrowed from the step's output.
struct DrawnRows {
  std::span<const SampledToken> scores;     // Of tokens of its prompt.
  std::span<const SampledToken> score_top;  // As of ScoredTokens.
  const SampleOutput* sample = nullptr;     // Null: nothing was to be drawn.
  std::span<const SampledToken> top = {};   // As of ScoredTokens.
  std::span<const float> hidden = {};
};

// What that was worth; of a step, the sum.
struct CommittedRows {
  uint32_t tokens = 0;
  uint32_t rows = 0;  // Not in vain.
};

}  // namespace baton

#endif  // BATON_ENGINE_STEP_RESULTS_H_
