#include "tests/fakes/fake_model_runner.h"

#include <algorithm>
#include <limits>

#include "base/logging.h"

namespace baton {
namespace {

// The finaliser of SplitMix64: every bit of the input moves every bit of the
// output.
uint64_t Mix(uint64_t value) {
  value += 0x9e3779b97f4a7c15;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
  value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
  return value ^ (value >> 31);
}

}  // namespace

FakeModelRunner::FakeModelRunner(const Options& options) : options_(options) {
  CHECK_EQ(options.bytes_per_token % sizeof(uint64_t), 0u);
  info_.vocab_size = options.vocab_size;
  info_.max_context_tokens = options.max_context_tokens;
  info_.cache.groups = {{"rows", options.bytes_per_token}};
  info_.fingerprint = "fake";
}

void FakeModelRunner::Forward(const ForwardBatch& batch,
                              MatrixView<float> logits) {
  CHECK_EQ(batch.token_ids.size(), batch.positions.size());
  CHECK_LE(static_cast<int>(batch.token_ids.size()), options_.max_rows);
  CHECK_LE(static_cast<int>(batch.logits_rows.size()),
           options_.max_logits_rows);
  CHECK_EQ(logits.rows, static_cast<int>(batch.logits_rows.size()));
  ++num_steps_;
  num_rows_ += batch.token_ids.size();
  for (const SequenceRows& sequence : batch.sequences) {
    const int32_t end = sequence.first_row + sequence.num_rows;
    for (int32_t row = sequence.first_row; row < end; ++row) {
      WriteRow(sequence, batch.positions[row], batch.token_ids[row]);
    }
    for (int i = 0; i < logits.rows; ++i) {
      const int32_t row = batch.logits_rows[i];
      if (row < sequence.first_row || row >= end) continue;
      uint64_t hash = 0;
      for (int32_t p = 0; p <= batch.positions[row]; ++p) {
        hash = Mix(hash ^ RowHash(sequence, p));
      }
      WriteLogits(hash, logits.row(i));
      if (batch.token_ids[row] == options_.poison_token) {
        logits.row(i)[0] = std::numeric_limits<float>::quiet_NaN();
      }
    }
  }
}

uint64_t* FakeModelRunner::RowBytes(const SequenceRows& sequence,
                                    int32_t position) const {
  const BlockId block(sequence.block_table[position / CacheSpec::kBlockTokens]);
  CHECK_LT(block.value(), pool_->num_blocks());
  const size_t offset =
      position % CacheSpec::kBlockTokens * options_.bytes_per_token;
  return reinterpret_cast<uint64_t*>(pool_->block(block) + offset);
}

uint64_t FakeModelRunner::RowHash(const SequenceRows& sequence,
                                  int32_t position) const {
  const uint64_t* bytes = RowBytes(sequence, position);
  uint64_t hash = 0;
  for (size_t i = 0; i < options_.bytes_per_token / sizeof(uint64_t); ++i) {
    hash = Mix(hash ^ bytes[i]);
  }
  return hash;
}

void FakeModelRunner::WriteRow(const SequenceRows& sequence, int32_t position,
                               uint32_t token) {
  uint64_t hash = position == 0 ? 0 : RowHash(sequence, position - 1);
  hash = Mix(hash ^ (uint64_t{static_cast<uint32_t>(position)} << 32 | token));
  uint64_t* bytes = RowBytes(sequence, position);
  for (size_t i = 0; i < options_.bytes_per_token / sizeof(uint64_t); ++i) {
    bytes[i] = hash = Mix(hash);
  }
}

void FakeModelRunner::WriteLogits(uint64_t hash, float* logits) const {
  for (uint32_t i = 0; i < options_.vocab_size; ++i) {
    const uint64_t word = Mix(hash + i);
    logits[i] = static_cast<float>(word >> 40) / float{1 << 24} * 8 - 4;
  }
}

}  // namespace baton
