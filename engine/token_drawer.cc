#include "engine/token_drawer.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace baton {

TokenDrawer::TokenDrawer(const EngineOptions& options, const CpuContext& cpu)
    : cpu_(cpu), tokens_per_sample_(options.max_rows_per_sequence_decoding()) {
  const uint32_t draws = options.max_logits_rows();
  params_.reserve(draws);
  drawn_.reserve(draws);
  top_.reserve(size_t{draws} * kMaxTopLogprobs);
  sampleable_.reserve(draws);
}

void TokenDrawer::DrawTokens(const StepInput& input,
                             std::span<const CorrectedRows> corrected,
                             MatrixView<float> logits,
                             std::span<SequenceSlot> slots,
                             StepOutput* output) {
  params_.clear();
  for (size_t i = 0; i < input.rows.size(); ++i) {
    const StepRows& rows = input.rows[i];
    if (rows.sample < 0) continue;
    const SampleInput& sample = input.samples[rows.sample];
    SequenceSlot& slot = slots[rows.slot];
    if (rows.source == RowSource::kHost) {
      slot.ended = false;
      slot.num_drafts = 0;
      if (sample.counts) {
        slot.StartCounting(
            static_cast<uint32_t>(logits.cols),
            std::span(input.counted_ids)
                .subspan(sample.first_counted, sample.num_counted),
            sample.num_prompt_tokens);
      }
    }
    for (uint32_t j = 0; j < corrected[i].num_draws; ++j) {
      AddDraw(sample, slot, corrected[i].draw_position + j, j);
    }
  }
  DrawAll(logits);
  for (size_t i = 0; i < input.rows.size(); ++i) {
    const StepRows& rows = input.rows[i];
    if (rows.sample < 0) continue;
    Accept(rows, corrected[i], &slots[rows.slot], output);
  }
}

void TokenDrawer::ScoreRows(const StepInput& input, MatrixView<float> logits,
                            StepOutput* output) {
  const size_t count = input.scores.size();
  if (count == 0) return;
  FlattenBadRows(logits);
  const auto scores = std::span(output->scores).first(count);
  ScoreTokens(cpu_, logits, input.scores, scores,
              std::span(output->score_top).first(count * kMaxTopLogprobs));
  for (size_t i = 0; i < count; ++i) {
    if (sampleable_[i]) continue;
    scores[i].logprob = std::numeric_limits<float>::quiet_NaN();
  }
}

void TokenDrawer::DrawDrafts(const StepInput& input,
                             std::span<const uint32_t> rows,
                             MatrixView<float> logits,
                             std::span<SequenceSlot> slots,
                             StepOutput* output) {
  params_.clear();
  for (uint32_t index : rows) {
    const StepRows& drafted = input.rows[index];
    const SequenceSlot& slot = slots[drafted.slot];
    AddDraw(input.samples[drafted.sample], slot,
            slot.num_tokens + slot.num_drafts, slot.num_drafts);
    params_.back().num_top_logprobs = 0;
    params_.back().logprobs_after_truncation = false;
  }
  DrawAll(logits);
  for (size_t i = 0; i < rows.size(); ++i) {
    const StepRows& drafted = input.rows[rows[i]];
    SequenceSlot& slot = slots[drafted.slot];
    SampleOutput& out = output->samples[drafted.sample];
    // A draft of logits that are no distribution is one like any other: the
    // target decides.
    slot.drafts[slot.num_drafts++] = drawn_[i].token_id;
    out.draft_probability[out.num_drafts++] = std::exp(drawn_[i].logprob);
  }
}

void TokenDrawer::AddDraw(const SampleInput& sample, const SequenceSlot& slot,
                          uint32_t position, uint32_t num_uncounted) {
  SampleParams params = sample.params;
  params.position = position;
  if (sample.counts) {
    params.token_counts = slot.token_counts.data();
    params.uncounted = std::span(slot.drafts).first(num_uncounted);
  }
  if (position >= sample.forbidden_before) params.forbidden = {};
  params_.push_back(params);
}

void TokenDrawer::DrawAll(MatrixView<float> logits) {
  const size_t draws = params_.size();
  drawn_.resize(draws);
  top_.resize(draws * kMaxTopLogprobs);
  FlattenBadRows(logits);
  Sample(cpu_, logits, params_, drawn_, top_);
}

void TokenDrawer::FlattenBadRows(MatrixView<float> logits) {
  sampleable_.resize(static_cast<size_t>(logits.rows));
  for (int row = 0; row < logits.rows; ++row) {
    sampleable_[row] = RowIsSampleable(logits, row);
    if (!sampleable_[row]) std::fill_n(logits.row(row), logits.cols, 0.0f);
  }
}

void TokenDrawer::Accept(const StepRows& rows, const CorrectedRows& corrected,
                         SequenceSlot* slot, StepOutput* output) const {
  SampleOutput& out = output->samples[rows.sample];
  out = SampleOutput();
  out.num_verified = std::max(corrected.num_draws, 1u) - 1;
  for (uint32_t j = 0; j < corrected.num_draws; ++j) {
    const size_t draw = corrected.first_logits_row + j;
    if (!sampleable_[draw]) {
      out.sampleable = false;
      slot->ended = true;
      break;
    }
    const uint32_t token = drawn_[draw].token_id;
    if (params_[draw].num_top_logprobs > 0) {
      const size_t to = rows.sample * tokens_per_sample_ + out.num_tokens;
      std::copy_n(&top_[draw * kMaxTopLogprobs], kMaxTopLogprobs,
                  &output->top[to * kMaxTopLogprobs]);
    }
    out.tokens[out.num_tokens++] = drawn_[draw];
    if (params_[draw].token_counts != nullptr) ++slot->token_counts[token];
    slot->newest_token = token;
    slot->num_tokens = corrected.draw_position + out.num_tokens;
    if (j + 1 < corrected.num_draws && slot->drafts[j] != token) break;
  }
  slot->num_drafts = 0;
}

}  // namespace baton
