// Device memory that carries a sequence from step to step.
#ifndef BATON_ENGINE_SEQUENCE_SLOT_H_
#define BATON_ENGINE_SEQUENCE_SLOT_H_

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/engine_options.h"
#include "kernels/sample.h"

namespace baton {

// Only the device thread touches it.
struct SequenceSlot {
  uint32_t num_tokens = 0;  // The newest, whose row is not computed, included.
  uint32_t newest_token = 0;
  // A row was not sampleable: no more rows, until the slot is given anew.
  bool ended = false;
  // Candidates for the tokens behind the newest one.
  uint32_t num_drafts = 0;
  std::array<uint32_t, kMaxDraftTokens> drafts = {};
  // hidden is the state of the position before the next row, whose drafter's
  // row is still to be written.
  bool has_hidden = false;
  std::vector<float> hidden;  // [hidden_size]
  // [vocab], see SampleParams::token_counts; empty until first wanted.
  std::vector<uint32_t> token_counts;

  // The first num_prompt_tokens of `ids` are the prompt.
  void StartCounting(uint32_t vocab_size, std::span<const uint32_t> ids,
                     uint32_t num_prompt_tokens) {
    token_counts.assign(vocab_size, 0);
    for (size_t i = 0; i < ids.size(); ++i) {
      if (i < num_prompt_tokens) {
        token_counts[ids[i]] |= kPromptTokenBit;
      } else {
        ++token_counts[ids[i]];
      }
    }
  }
};

}  // namespace baton

#endif  // BATON_ENGINE_SEQUENCE_SLOT_H_
