// What a step reads and writes on the device: plain data, no pointers into the
// engine's changing state.
#ifndef BATON_ENGINE_STEP_IO_H_
#define BATON_ENGINE_STEP_IO_H_

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/time/time.h"
#include "comm/expert_dispatch.h"
#include "engine/engine_options.h"
#include "kernels/sample.h"

namespace baton {

// Remap: where a sequence's newest token is when the step starts.
enum class RowSource : uint8_t {
  kHost,    // Known when the step was planned: in StepInput::token_ids.
  kDevice,  // In its sequence slot, left there by a step before.
};

// The rows of one sequence. Rows from the device are corrected there: the slot
// says where they begin, and how many drafts there are to verify.
struct StepRows {
  uint32_t slot = 0;
  RowSource source = RowSource::kHost;
  uint32_t first_position = 0;  // kHost.
  uint32_t num_rows = 0;        // kHost: exactly; kDevice: at most.
  uint32_t first_token = 0;     // kHost: index into token_ids.
  // Positions from here on have no row, in the drafter neither.
  uint32_t end_position = 0;
  uint32_t first_block = 0;    // Index into block_tables.
  uint32_t prompt_tokens = 0;  // The request's original prompt length.
  uint32_t num_drafts = 0;     // To make, for the step after.
  // Of these rows, those that score the prompt token behind them: so many from
  // this one on. kHost. Their tokens: from StepInput::scores[first_score] on.
  uint32_t first_scored_row = 0;
  uint32_t num_scored = 0;
  uint32_t first_score = 0;
  // Index into samples of its draw, or -1: it draws nothing.
  int32_t sample = -1;
  // The state of the position before the first row, where another rank has
  // computed that; [hidden_size], or null: it is in the slot, or behind a whole
  // block in that block's tail.
  const float* hidden = nullptr;
};

// How one sequence draws. Constant while the request lives.
struct SampleInput {
  SampleParams params;  // Without position, counts and drafts.
  // Positions below may not draw params.forbidden.
  uint32_t forbidden_before = 0;
  // Nonzero: the sequence has penalties, and its slot counts anew, from so many
  // tokens behind first_counted in StepInput::counted_ids.
  uint32_t num_counted = 0;
  uint32_t first_counted = 0;
  uint32_t num_prompt_tokens = 0;
  bool counts = false;        // It has penalties.
  bool wants_hidden = false;  // SampleOutput gives the newest row's state.
};

struct StepInput {
  std::vector<uint32_t> token_ids = {};
  std::vector<uint32_t> block_tables =
      {};  // All sequences', one after the other.
  std::vector<StepRows> rows = {};
  std::vector<SampleInput> samples = {};
  std::vector<uint32_t> counted_ids = {};
  std::vector<ScoreParams> scores = {};
  // Both are the group's, the same for each of its ranks. Of each layer with
  // experts; the tables outlive the step. Empty: alone.
  std::span<const ExpertSlots> expert_slots = {};
  // Runs of the drafter, rows or none: 1 for the rows of known tokens, and one
  // for each draft behind the first. 0: alone, as many as the rows need.
  uint32_t num_draft_passes = 0;
};

// What one sequence drew.
struct SampleOutput {
  // 0: it had all its tokens already, or a row before was not sampleable.
  uint32_t num_tokens = 0;
  // False: the logits behind the last of these tokens were no distribution.
  bool sampleable = true;
  std::array<SampledToken, 1 + kMaxDraftTokens> tokens = {};
  uint32_t num_verified = 0;  // Drafts that had a row in this step.
  // Probability of each draft made behind these tokens, by the drafter.
  uint32_t num_drafts = 0;
  std::array<float, kMaxDraftTokens> draft_probability = {};
};

struct StepOutput {
  std::vector<SampleOutput> samples;
  // [samples, 1 + drafts, kMaxTopLogprobs]
  std::vector<SampledToken> top;
  // [scores], NaN where the logits were no distribution, and
  // [scores, kMaxTopLogprobs].
  std::vector<SampledToken> scores;
  std::vector<SampledToken> score_top;
  // [samples, hidden_size]; rows of samples that want it.
  std::vector<float> hidden;
  // [expert layers, slots_per_rank], the drafter's layer last: rows that each
  // slot of this rank got, of all ranks' tokens and of all passes. Empty alone.
  std::vector<uint32_t> expert_rows;
  uint32_t num_rows = 0;  // Really computed.
  // The group ended while this step ran: nothing here is worth anything, nor is
  // what it wrote into the cache.
  bool abandoned = false;
  absl::Time device_start;
  absl::Time device_end;
};

}  // namespace baton

#endif  // BATON_ENGINE_STEP_IO_H_
