// From a step's logits to its tokens, on the CPU: draw, verify, accept.
#ifndef BATON_ENGINE_TOKEN_DRAWER_H_
#define BATON_ENGINE_TOKEN_DRAWER_H_

#include <cstdint>
#include <span>
#include <vector>

#include "engine/engine_options.h"
#include "engine/sequence_slot.h"
#include "engine/step_batch.h"
#include "engine/step_io.h"
#include "kernels/cpu_context.h"
#include "kernels/matrix_view.h"
#include "kernels/sample.h"

namespace baton {

// Owned by the executor; the device thread.
class TokenDrawer {
 public:
  TokenDrawer(const EngineOptions& options, const CpuContext& cpu);

  // Draws for every StepRows with a sample, and takes the drafts that equal the
  // draw at their position, up to the first that does not. Row s of a verify
  // step draws as if its drafts before s had been generated, so the tokens are
  // those of a sequence without drafts. The slots follow.
  void DrawTokens(const StepInput& input,
                  std::span<const CorrectedRows> corrected,
                  MatrixView<float> logits, std::span<SequenceSlot> slots,
                  StepOutput* output);

  // Scores input.scores, from a row of logits each.
  void ScoreRows(const StepInput& input, MatrixView<float> logits,
                 StepOutput* output);

  // Draws a draft for each of `rows` (indices into input.rows) from a row of
  // logits each, as the target would draw behind the drafts that the slot has,
  // and adds it to them.
  void DrawDrafts(const StepInput& input, std::span<const uint32_t> rows,
                  MatrixView<float> logits, std::span<SequenceSlot> slots,
                  StepOutput* output);

 private:
  // Draws params_[i] from row i.
  void DrawAll(MatrixView<float> logits);
  // Rows that hold NaN or +infinity are flattened, drawn in vain and marked in
  // sampleable_.
  void FlattenBadRows(MatrixView<float> logits);
  void AddDraw(const SampleInput& sample, const SequenceSlot& slot,
               uint32_t position, uint32_t num_uncounted);
  void Accept(const StepRows& rows, const CorrectedRows& corrected,
              SequenceSlot* slot, StepOutput* output) const;

  const CpuContext cpu_;
  const uint32_t tokens_per_sample_;
  std::vector<SampleParams> params_;
  std::vector<SampledToken> drawn_;
  std::vector<SampledToken> top_;  // [draws, kMaxTopLogprobs]
  std::vector<uint8_t> sampleable_;
};

}  // namespace baton

#endif  // BATON_ENGINE_TOKEN_DRAWER_H_
