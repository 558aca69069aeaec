// The engine's side of steps that are done.
#include <algorithm>
#include <cstdint>
#include <span>

#include "engine/cache_spec.h"
#include "engine/kv_tail.h"
#include "engine/llm_engine.h"

namespace baton {
namespace {

void CountDrafts(const WorkerStepState& step, StepStats* stats) {
  for (const StepRows& rows : step.input.rows) {
    if (rows.sample < 0) continue;
    const SampleOutput& drawn = step.output.samples[rows.sample];
    stats->drafts_made += drawn.num_drafts;
    for (uint32_t j = 0; j < drawn.num_verified; ++j) {
      ++stats->drafts_verified[j];
      stats->drafts_accepted[j] += j + 1 < drawn.num_tokens;
    }
  }
}

}  // namespace

bool LLMEngine::CommitDoneSteps() {
  bool busy = false;
  while (WorkerStepState* step = worker_.OldestDone()) {
    CommitStep(step);
    busy = true;
  }
  return busy;
}

void LLMEngine::CommitStep(WorkerStepState* step) {
  const absl::Time start = environment_.clock->Now();
  const size_t width = model_.drafter_hidden_size();
  Committed total;
  for (size_t i = 0; i < step->plan.rows.size(); ++i) {
    const ScheduledRows& rows = step->plan.rows[i];
    const int32_t sample = step->input.rows[i].sample;
    const Committed committed =
        sample < 0 ? CommitRows(rows, nullptr, {})
                   : CommitRows(rows, &step->output.samples[sample],
                                std::span(step->output.hidden)
                                    .subspan(sample * width, width));
    total.tokens += committed.tokens;
    total.rows += committed.rows;
  }
  newest_done_ = step->plan.step;
  kv_.StepDone(newest_done_);
  ReportStep(*step, total, environment_.clock->Now() - start);
  worker_.Retire(step);
}

LLMEngine::Committed LLMEngine::CommitRows(const ScheduledRows& rows,
                                           const SampleOutput* drawn,
                                           std::span<const float> hidden) {
  SequenceMetadata* sequence = rows.sequence;
  if (sequence->generation != rows.generation) return {};  // It left meanwhile.
  CountCommitted(rows, drawn);
  if (sequence->exports()) ReportProgress(sequence);
  if (drawn == nullptr) return {.rows = rows.num_rows};

  uint32_t appended = 0;
  if (drawn->num_tokens > 0) {
    if (sequence->phase() == SequencePhase::kPrefilling) LeavePrefill(sequence);
    appended = AppendTokens(sequence,
                            std::span(drawn->tokens).first(drawn->num_tokens));
    if (sequence->exports()) PublishTail(*sequence, drawn->tokens[0], hidden);
  }
  if (!drawn->sampleable && sequence->generation == rows.generation) {
    End(sequence, absl::InternalError("the logits are no distribution"));
  }
  // From the device: one row a token.
  const bool from_host = rows.source == RowSource::kHost;
  return {.tokens = appended, .rows = from_host ? rows.num_rows : appended};
}

void LLMEngine::CountCommitted(const ScheduledRows& rows,
                               const SampleOutput* drawn) {
  SequenceMetadata* sequence = rows.sequence;
  sequence->inflight_rows -= rows.num_rows;
  if (rows.source == RowSource::kHost) {
    sequence->computed_rows += rows.num_rows;
  } else {
    // One row a token drawn: the others were of drafts refused.
    sequence->computed_rows += drawn->num_tokens;
  }
  if (drawn == nullptr) return;
  const bool from_host = rows.source == RowSource::kHost;
  sequence->total_inflight_tokens -= from_host ? 1 : rows.num_rows;
  --sequence->inflight_draws;
  for (uint32_t j = 0; j < drawn->num_verified && j < drawn->num_tokens; ++j) {
    scheduler_.planner()->ObserveAcceptance(
        j, sequence->draft_rates.confidence[j], j + 1 < drawn->num_tokens);
  }
  sequence->draft_rates.num_drafts = drawn->num_drafts;
  sequence->draft_rates.confidence = drawn->draft_probability;
}

void LLMEngine::ReportProgress(SequenceMetadata* sequence) const {
  const uint32_t computed = sequence->computed_rows;
  const uint32_t readable = computed == sequence->num_tokens()
                                ? CacheSpec::BlocksFor(computed)
                                : computed / CacheSpec::kBlockTokens;
  if (readable > 0) {
    environment_.transfer->PublishReadable(ExportId(sequence->id.value()),
                                           readable);
  }
  sequence->sink->OnProgress(computed);
}

void LLMEngine::LeavePrefill(SequenceMetadata* sequence) {
  const bool recomputed =
      sequence->imported || sequence->prefill_time > absl::ZeroDuration();
  if (!recomputed) {
    sequence->prefill_time =
        environment_.clock->Now() - sequence->first_admitted;
  }
  if (sequence->exports()) {
    scheduler_.Remove(sequence);
    sequence->SetPhase(SequencePhase::kExported);
  } else {
    kv_.Transition(&sequence->kv, KvRangeState::kOwned);
    sequence->SetPhase(SequencePhase::kDecoding);
  }
}

uint32_t LLMEngine::AppendTokens(SequenceMetadata* sequence,
                                 std::span<const SampledToken> drawn) {
  const uint32_t index = sequence->output_tokens();
  token_ids_.clear();
  logprobs_.clear();
  bool ends = false;
  for (size_t i = 0; i < drawn.size() && !ends; ++i) {
    sequence->tokens.push_back(drawn[i].token_id);
    token_ids_.push_back(drawn[i].token_id);
    logprobs_.push_back(drawn[i].logprob);
    ends = FinishReasonOf(*sequence).has_value();
  }
  sequence->sink->OnTokens(index, token_ids_, logprobs_);
  if (ends && !sequence->exports()) End(sequence, absl::OkStatus());
  return static_cast<uint32_t>(token_ids_.size());
}

void LLMEngine::PublishTail(const SequenceMetadata& sequence,
                            const SampledToken& drawn,
                            std::span<const float> hidden) const {
  const KvTail tail = {
      .entries = {{.sample_index = sequence.request.sample_index,
                   .token_id = drawn.token_id,
                   .logprob = drawn.logprob}},
      .hidden = {hidden.begin(), hidden.end()}};
  environment_.transfer->PublishTail(ExportId(sequence.id.value()),
                                     EncodeKvTail(tail));
}

void LLMEngine::ReportStep(const WorkerStepState& step,
                           const Committed& committed,
                           absl::Duration commit_time) {
  const StepOutput& output = step.output;
  if (step.plan.type == StepType::kDecode) {
    scheduler_.planner()->Observe(output.num_rows,
                                  output.device_end - output.device_start);
  }
  const absl::Time ready = device_busy_until_.value_or(output.device_start);
  device_busy_until_ = output.device_end;
  if (!environment_.observer) return;
  StepStats stats = {.prefill = step.plan.type == StepType::kPrefill,
                     .rows = output.num_rows,
                     .sequences = static_cast<uint32_t>(step.plan.rows.size()),
                     .preemptions = step.plan.preemptions,
                     .wasted_rows = output.num_rows - committed.rows,
                     .tokens = committed.tokens,
                     .schedule_time = step.schedule_time,
                     .commit_time = commit_time,
                     .device_time = output.device_end - output.device_start,
                     .device_idle = std::max(absl::ZeroDuration(),
                                             output.device_start - ready)};
  CountDrafts(step, &stats);
  environment_.observer(stats);
}

}  // namespace baton
