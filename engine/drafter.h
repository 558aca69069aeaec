// The drafts of a step for the one after, on the CPU.
#ifndef BATON_ENGINE_DRAFTER_H_
#define BATON_ENGINE_DRAFTER_H_

#include <cstdint>
#include <span>
#include <vector>

#include "engine/engine_options.h"
#include "engine/model_runner.h"
#include "engine/sequence_slot.h"
#include "engine/step_batch.h"
#include "engine/step_io.h"
#include "engine/token_drawer.h"
#include "kernels/matrix_view.h"

namespace baton {

// Owned by the executor; the device thread.
class Drafter {
 public:
  // Borrows both. REQUIRES: model->info().has_drafter.
  Drafter(const EngineOptions& options, ModelRunner* model,
          TokenDrawer* drawer);

  // Behind Forward and DrawTokens: writes the drafter's row of every token that
  // became known in this step, then chains as many drafts as were asked for, or
  // as the passes agreed in a group leave room for.
  // hidden: [forward's rows, hidden_size].
  void MakeDrafts(const StepInput& input,
                  std::span<const CorrectedRows> corrected,
                  MatrixView<const float> hidden, std::span<SequenceSlot> slots,
                  StepOutput* output);

 private:
  // One step's, borrowed.
  struct Step {
    const StepInput* input = nullptr;
    std::span<const CorrectedRows> corrected;
    MatrixView<const float> hidden;
    std::span<SequenceSlot> slots;
    StepOutput* output = nullptr;
  };

  void AddKnownTokens(const Step& step, uint32_t index);
  void AddRow(uint32_t token, uint32_t position, const float* hidden);
  // Some sequence wants a draft behind the one that it is about to get.
  bool ChainGoesOn(const Step& step) const;
  // Runs the rows in batch_ and draws a draft for each of drafting_. The rows'
  // states are computed only if they are wanted.
  void DrawDrafts(const Step& step, bool wants_states);
  // Puts the newest draft of each of drafting_ that wants more into batch_.
  void ChainDrafts(const Step& step);

  ModelRunner* const model_;
  TokenDrawer* const drawer_;
  const int hidden_size_;
  StepBatch batch_;
  std::vector<float> hidden_;  // [rows of batch_, hidden_size]
  std::vector<float> output_;  // The same, of the drafter.
  std::vector<float> logits_;  // [sequences, vocab]
  // Sequences that have a row of logits in batch_: indices into input.rows.
  std::vector<uint32_t> drafting_;
};

}  // namespace baton

#endif  // BATON_ENGINE_DRAFTER_H_
