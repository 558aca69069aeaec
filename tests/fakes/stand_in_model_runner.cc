#include "tests/fakes/stand_in_model_runner.h"

#include <algorithm>
#include <limits>

#include "base/logging.h"
#include "kernels/cuda/stand_in_model.h"

namespace baton {

StandInModelRunner::StandInModelRunner(uint32_t vocab_size,
                                       uint32_t max_context_tokens) {
  static_assert(CacheSpec::kBlockTokens == kStandInBlockTokens);
  info_.vocab_size = vocab_size;
  info_.max_context_tokens = max_context_tokens;
  info_.cache.groups = {{"rows", sizeof(uint64_t)}};
  info_.fingerprint = "stand-in";
}

void StandInModelRunner::Forward(const ForwardBatch& batch,
                                 const ForwardOutput& output) {
  for (const SequenceRows& sequence : batch.sequences) {
    for (int32_t j = 0; j < sequence.num_rows; ++j) {
      const int32_t row = sequence.first_row + j;
      const int32_t position = batch.positions[row];
      const uint64_t before =
          position == 0 ? 0 : *Cached(sequence, position - 1);
      *Cached(sequence, position) =
          StandInRow(before, batch.token_ids[row], position);
    }
    for (int i = 0; i < output.logits.rows; ++i) {
      const int32_t row = batch.logits_rows[i];
      if (row < sequence.first_row ||
          row >= sequence.first_row + sequence.num_rows) {
        continue;
      }
      const uint64_t cached = *Cached(sequence, batch.positions[row]);
      float* logits = output.logits.row(i);
      std::fill_n(logits, info_.vocab_size,
                  -std::numeric_limits<float>::infinity());
      logits[StandInToken(cached, info_.vocab_size)] = 0;
    }
  }
}

void StandInModelRunner::Draft(const ForwardBatch&, MatrixView<const float>,
                               const ForwardOutput&) {
  LOG(FATAL) << "the stand-in has no drafter here";
}

uint64_t* StandInModelRunner::Cached(const SequenceRows& sequence,
                                     int32_t position) const {
  const BlockId block(sequence.block_table[position / CacheSpec::kBlockTokens]);
  CHECK_LT(block.value(), pool_->num_blocks());
  return reinterpret_cast<uint64_t*>(pool_->block(block)) +
         position % CacheSpec::kBlockTokens;
}

}  // namespace baton
