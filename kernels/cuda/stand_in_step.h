// What a step does for one sequence: the bodies of the stand-in kernels, plain
// functions so that they are tested without a GPU.
#ifndef BATON_KERNELS_CUDA_STAND_IN_STEP_H_
#define BATON_KERNELS_CUDA_STAND_IN_STEP_H_

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/cuda_api.h"
#include "kernels/cuda/stand_in_model.h"

namespace baton {

// SequenceSlot of engine/sequence_slot.h, without what the stand-in lacks.
struct CudaSlot {
  uint32_t num_tokens;
  uint32_t newest_token;
  uint32_t num_drafts;
  uint32_t drafts[kMaxCudaDrafts];
};

// Length correction's result.
struct CudaCorrected {
  uint32_t first_position;
  uint32_t num_rows;
};

// Device memory of all steps, and the place of one in the ring.
struct StandInStep {
  CudaDeviceOptions options;
  void* input;
  void* report;              // In the host's memory.
  CudaSlot* slots;           // [max_sequences]
  CudaCorrected* corrected;  // [max_sequences]
  // [max_sequences, 1 + num_drafts], of rows that draw; in place of logits.
  uint64_t* hidden;
  uint64_t* cache;  // [num_blocks, kStandInBlockTokens]
  uint64_t* steps_done;
  uint64_t* start;     // Of the step that runs.
  uint32_t* num_rows;  // The same.
};

BATON_HOST_DEVICE inline CudaStepInput InputOf(const StandInStep& step) {
  const auto* header = static_cast<const CudaStepHeader*>(step.input);
  return ViewCudaInput(step.input, header->num_sequences, header->num_tokens);
}

BATON_HOST_DEVICE inline CudaReport ReportOf(const StandInStep& step) {
  return ViewCudaReport(step.report, step.options.max_sequences,
                        step.options.num_drafts);
}

// A sequence from the device has the newest token in its slot, then as many
// drafts as there are, were asked for, and have a place.
BATON_HOST_DEVICE inline CudaCorrected CorrectLength(const CudaRows& rows,
                                                     const CudaSlot& slot) {
  if (!rows.from_device) return {rows.first_position, rows.num_rows};
  const uint32_t base = slot.num_tokens - 1;
  if (base >= rows.end_position) return {base, 0};
  uint32_t num_rows = rows.end_position - base;
  if (num_rows > rows.num_rows) num_rows = rows.num_rows;
  if (num_rows > 1 + slot.num_drafts) num_rows = 1 + slot.num_drafts;
  return {base, num_rows};
}

// The forward pass of sequence i: into the cache first, and from there.
BATON_HOST_DEVICE inline void RunRows(const StandInStep& step, uint32_t i) {
  const CudaStepInput input = InputOf(step);
  const CudaRows& rows = input.rows[i];
  const CudaSlot& slot = step.slots[rows.slot];
  const CudaCorrected corrected = step.corrected[i];
  const uint32_t* table = input.block_tables + rows.first_block;
  uint64_t* hidden = step.hidden + size_t{i} * (1 + step.options.num_drafts);
  const auto cached = [&](uint32_t position) -> uint64_t& {
    const size_t block = table[position / kStandInBlockTokens];
    return step
        .cache[block * kStandInBlockTokens + position % kStandInBlockTokens];
  };
  uint64_t row = corrected.first_position == 0 || corrected.num_rows == 0
                     ? 0
                     : cached(corrected.first_position - 1);
  for (uint32_t j = 0; j < corrected.num_rows; ++j) {
    const uint32_t position = corrected.first_position + j;
    const uint32_t token = !rows.from_device
                               ? input.token_ids[rows.first_token + j]
                           : j == 0 ? slot.newest_token
                                    : slot.drafts[j - 1];
    row = StandInRow(row, token, position);
    cached(position) = row;
    if (rows.from_device) hidden[j] = row;
  }
  if (!rows.from_device) hidden[0] = row;
}

// Drafts behind the newest token, from the row before it.
BATON_HOST_DEVICE inline void MakeDrafts(const StandInStep& step,
                                         const CudaRows& rows, uint64_t row,
                                         CudaSlot* slot) {
  uint32_t token = slot->newest_token;
  for (uint32_t j = 0; j < rows.num_drafts; ++j) {
    if (slot->num_tokens + j >= rows.end_position) return;
    row = StandInRow(row, token, slot->num_tokens - 1 + j);
    token = StandInDraft(row, step.options.model);
    slot->drafts[slot->num_drafts++] = token;
  }
}

// Sequence i's draws, verification, slot and report.
BATON_HOST_DEVICE inline void SampleSequence(const StandInStep& step,
                                             uint32_t i) {
  const CudaRows& rows = InputOf(step).rows[i];
  if (!rows.draws) return;
  const CudaCorrected corrected = step.corrected[i];
  const CudaReport report = ReportOf(step);
  const size_t stride = step.options.max_sequences;
  const uint64_t* hidden =
      step.hidden + size_t{i} * (1 + step.options.num_drafts);
  CudaSlot slot = step.slots[rows.slot];
  const uint32_t num_draws = rows.from_device ? corrected.num_rows : 1;
  const uint32_t position = rows.from_device
                                ? slot.num_tokens
                                : corrected.first_position + corrected.num_rows;
  uint32_t num_tokens = 0;
  bool goes_on = true;
  while (goes_on && num_tokens < num_draws) {
    const uint32_t token =
        StandInToken(hidden[num_tokens], step.options.model.vocab_size);
    report.token_ids[num_tokens * stride + i] = token;
    report.logprobs[num_tokens * stride + i] = 0;
    slot.newest_token = token;
    goes_on = num_tokens + 1 < num_draws && slot.drafts[num_tokens] == token;
    ++num_tokens;
  }
  const uint32_t num_verified = num_draws > 0 ? num_draws - 1 : 0;
  slot.num_drafts = 0;
  if (num_tokens > 0) {
    slot.num_tokens = position + num_tokens;
    MakeDrafts(step, rows, hidden[num_tokens - 1], &slot);
  }
  for (uint32_t j = 0; j < slot.num_drafts; ++j) {
    report.draft_probability[j * stride + i] =
        static_cast<float>(step.options.model.right_drafts) / 256;
  }
  report.counts[i] = num_tokens | num_verified << 8 | slot.num_drafts << 16;
  step.slots[rows.slot] = slot;
}

}  // namespace baton

#endif  // BATON_KERNELS_CUDA_STAND_IN_STEP_H_
