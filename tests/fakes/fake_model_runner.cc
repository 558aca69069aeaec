#include "tests/fakes/fake_model_runner.h"

#include <algorithm>
#include <array>
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

constexpr uint32_t kHiddenSize = 4;

}  // namespace

FakeModelRunner::FakeModelRunner(const Options& options) : options_(options) {
  CHECK_EQ(options.bytes_per_token % sizeof(uint64_t), 0u);
  info_.vocab_size = options.vocab_size;
  info_.max_context_tokens = options.max_context_tokens;
  info_.hidden_size = kHiddenSize;
  info_.has_drafter = options.drafter;
  info_.cache.groups = {{"rows", options.bytes_per_token}};
  if (options.drafter) {
    info_.cache.groups.push_back({"drafter", options.bytes_per_token});
    info_.cache.tail_bytes_per_block = sizeof(float) * kHiddenSize;
  }
  info_.fingerprint = "fake";
  info_.prompt_has_own_form = options.prompt_has_own_form;
}

void FakeModelRunner::Forward(const ForwardBatch& batch,
                              const ForwardOutput& output) {
  CheckBatch(batch, output);
  ++num_steps_;
  num_rows_ += batch.token_ids.size();
  for (const SequenceRows& sequence : batch.sequences) {
    const int32_t end = sequence.first_row + sequence.num_rows;
    for (int32_t row = sequence.first_row; row < end; ++row) {
      const int32_t position = batch.positions[row];
      WriteRow(Group::kModel, sequence, position, batch.token_ids[row]);
      if (output.hidden.data == nullptr) continue;
      WriteHidden(RowHash(Group::kModel, sequence, position),
                  output.hidden.row(row));
    }
    for (int i = 0; i < output.logits.rows; ++i) {
      const int32_t row = batch.logits_rows[i];
      if (row < sequence.first_row || row >= end) continue;
      float* logits = output.logits.row(i);
      WriteLogits(SequenceHash(Group::kModel, sequence, batch.positions[row]),
                  logits);
      if (batch.token_ids[row] == options_.poison_token) {
        logits[0] = std::numeric_limits<float>::quiet_NaN();
      }
    }
  }
}

void FakeModelRunner::Draft(const ForwardBatch& batch,
                            MatrixView<const float> hidden,
                            const ForwardOutput& output) {
  CHECK(info_.has_drafter);
  CheckBatch(batch, output);
  CHECK_EQ(hidden.rows, static_cast<int>(batch.token_ids.size()));
  for (const SequenceRows& sequence : batch.sequences) {
    const int32_t end = sequence.first_row + sequence.num_rows;
    for (int32_t row = sequence.first_row; row < end; ++row) {
      const int32_t position = batch.positions[row];
      CHECK_GE(position, 1);
      const Group before = position == 1 ? Group::kModel : Group::kDrafter;
      CheckHidden(RowHash(before, sequence, position - 1), hidden.row(row));
      WriteRow(Group::kDrafter, sequence, position, batch.token_ids[row]);
      if (output.hidden.data == nullptr) continue;
      WriteHidden(RowHash(Group::kDrafter, sequence, position),
                  output.hidden.row(row));
    }
    for (int i = 0; i < output.logits.rows; ++i) {
      const int32_t row = batch.logits_rows[i];
      if (row < sequence.first_row || row >= end) continue;
      const uint64_t hash =
          SequenceHash(Group::kDrafter, sequence, batch.positions[row]);
      const bool right = Mix(hash) % 256 < options_.right_drafts;
      WriteLogits(right ? hash : ~hash, output.logits.row(i));
    }
  }
}

void FakeModelRunner::CheckBatch(const ForwardBatch& batch,
                                 const ForwardOutput& output) const {
  CHECK_EQ(batch.token_ids.size(), batch.positions.size());
  CHECK_LE(static_cast<int>(batch.token_ids.size()), options_.max_rows);
  CHECK_LE(static_cast<int>(batch.logits_rows.size()),
           options_.max_logits_rows);
  CHECK_EQ(output.logits.rows, static_cast<int>(batch.logits_rows.size()));
  for (const uint32_t token : batch.token_ids) {
    CHECK_LT(token, options_.vocab_size);
  }
}

uint64_t* FakeModelRunner::RowBytes(Group group, const SequenceRows& sequence,
                                    int32_t position) const {
  const BlockId block(sequence.block_table[position / CacheSpec::kBlockTokens]);
  CHECK_LT(block.value(), pool_->num_blocks());
  const int row = (group == Group::kDrafter ? CacheSpec::kBlockTokens : 0) +
                  position % CacheSpec::kBlockTokens;
  return reinterpret_cast<uint64_t*>(pool_->block(block) +
                                     static_cast<size_t>(row) *
                                         options_.bytes_per_token);
}

uint64_t FakeModelRunner::RowHash(Group group, const SequenceRows& sequence,
                                  int32_t position) const {
  const uint64_t* bytes = RowBytes(group, sequence, position);
  uint64_t hash = 0;
  for (size_t i = 0; i < options_.bytes_per_token / sizeof(uint64_t); ++i) {
    hash = Mix(hash ^ bytes[i]);
  }
  return hash;
}

void FakeModelRunner::WriteRow(Group group, const SequenceRows& sequence,
                               int32_t position, uint32_t token) {
  // The drafter has no row at 0.
  const Group before = position == 1 ? Group::kModel : group;
  uint64_t hash = position == 0 ? 0 : RowHash(before, sequence, position - 1);
  hash = Mix(hash ^ (uint64_t{static_cast<uint32_t>(position)} << 32 | token));
  if (options_.prompt_has_own_form && position < sequence.prompt_tokens) {
    hash = Mix(hash);
  }
  uint64_t* bytes = RowBytes(group, sequence, position);
  for (size_t i = 0; i < options_.bytes_per_token / sizeof(uint64_t); ++i) {
    bytes[i] = hash = Mix(hash);
  }
}

uint64_t FakeModelRunner::SequenceHash(Group group,
                                       const SequenceRows& sequence,
                                       int32_t position) const {
  uint64_t hash = 0;
  for (int32_t p = 0; p <= position; ++p) {
    hash = Mix(hash ^ RowHash(p == 0 ? Group::kModel : group, sequence, p));
  }
  return hash;
}

void FakeModelRunner::WriteHidden(uint64_t row_hash, float* hidden) const {
  // Integers that float32 holds exactly.
  for (uint32_t i = 0; i < kHiddenSize; ++i) {
    hidden[i] = static_cast<float>(row_hash >> (16 * i) & 0xffff);
  }
}

void FakeModelRunner::CheckHidden(uint64_t row_hash,
                                  const float* hidden) const {
  std::array<float, kHiddenSize> expected;
  WriteHidden(row_hash, expected.data());
  CHECK(std::equal(expected.begin(), expected.end(), hidden))
      << "a hidden state of another position or history";
}

void FakeModelRunner::WriteLogits(uint64_t hash, float* logits) const {
  for (uint32_t i = 0; i < options_.vocab_size; ++i) {
    const uint64_t word = Mix(hash + i);
    logits[i] = static_cast<float>(word >> 40) / float{1 << 24} * 8 - 4;
  }
}

}  // namespace baton
