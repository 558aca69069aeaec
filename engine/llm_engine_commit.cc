// The engine's side of steps that are done.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>

#include "comm/kv_transfer_port.h"
#include "engine/cache_spec.h"
#include "engine/kv_tail.h"
#include "engine/llm_engine.h"

namespace baton {
namespace {

void CountDrafts(const WorkerStepState& step, StepStats* stats) {
  for (const StepRows& rows : step.input.rows) {
    if (rows.sample < 0) continue;
    const SampleOutput& drawn = step.output.samples[rows.sample];
    ++stats->draws;
    stats->drafts_made += drawn.num_drafts;
    for (uint32_t j = 0; j < drawn.num_verified; ++j) {
      ++stats->drafts_verified[j];
      stats->drafts_accepted[j] += j + 1 < drawn.num_tokens;
    }
  }
}

absl::Status NoDistributionError() {
  return absl::InternalError("the logits are no distribution");
}

// False: the logits behind the last told were no distribution.
bool TellPromptLogprobs(SequenceMetadata* sequence, const DrawnRows& drawn) {
  size_t count = 0;
  while (count < drawn.scores.size() &&
         !std::isnan(drawn.scores[count].logprob)) {
    ++count;
  }
  if (count == 0) return drawn.scores.empty();
  sequence->sink->OnPromptLogprobs(
      {.first_index = sequence->next_prompt_logprob,
       .tokens = drawn.scores.first(count),
       .top = drawn.score_top,
       .num_top = sequence->request.sampling.num_top_logprobs});
  sequence->next_prompt_logprob += static_cast<uint32_t>(count);
  return count == drawn.scores.size();
}

void PublishTail(const KvTransferPort& transfer,
                 const SequenceMetadata& sequence, const DrawnRows& drawn) {
  const ScoredTokens first = {
      .top = drawn.top, .num_top = sequence.request.sampling.num_top_logprobs};
  const auto top = first.TopOf(0);
  const KvTail tail = {
      .entries = {{.sample_index = sequence.request.sample_index,
                   .drawn = drawn.sample->tokens[0],
                   .top = {top.begin(), top.end()}}},
      .hidden = {drawn.hidden.begin(), drawn.hidden.end()}};
  transfer.PublishTail(ExportId(sequence.id.value()), EncodeKvTail(tail));
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
  if (step->output.abandoned) {
    EndUnfinished(absl::UnavailableError("the worker's group has lost a rank"));
  }
  CommittedRows total;
  for (size_t i = 0; i < step->plan.rows.size(); ++i) {
    const CommittedRows committed =
        CommitRows(step->plan.rows[i], DrawnOf(*step, i));
    total.tokens += committed.tokens;
    total.rows += committed.rows;
  }
  newest_done_ = step->plan.step;
  kv_.StepDone(newest_done_);
  history_.OnDone(newest_done_, step->output, total.tokens, start);
  ReportStep(*step, total, environment_.clock->Now() - start);
  worker_.Retire(step);
}

DrawnRows LLMEngine::DrawnOf(const WorkerStepState& step, size_t row) const {
  const StepRows& rows = step.input.rows[row];
  const StepOutput& output = step.output;
  DrawnRows drawn = {
      .scores =
          std::span(output.scores).subspan(rows.first_score, rows.num_scored),
      .score_top = std::span(output.score_top)
                       .subspan(size_t{rows.first_score} * kMaxTopLogprobs,
                                size_t{rows.num_scored} * kMaxTopLogprobs)};
  if (rows.sample < 0) return drawn;
  const auto sample = static_cast<size_t>(rows.sample);
  const size_t width = model_.drafter_hidden_size();
  const size_t top_width =
      size_t{options_.max_rows_per_sequence_decoding()} * kMaxTopLogprobs;
  drawn.sample = &output.samples[sample];
  drawn.top = std::span(output.top).subspan(sample * top_width, top_width);
  drawn.hidden = std::span(output.hidden).subspan(sample * width, width);
  return drawn;
}

CommittedRows LLMEngine::CommitRows(const ScheduledRows& rows,
                                    const DrawnRows& drawn) {
  SequenceMetadata* sequence = rows.sequence;
  if (sequence->generation != rows.generation) return {};  // It left meanwhile.
  const SampleOutput* sample = drawn.sample;
  CountCommitted(rows, sample);
  if (sequence->exports()) ReportProgress(sequence);
  if (!TellPromptLogprobs(sequence, drawn)) {
    End(sequence, NoDistributionError());
    return {.rows = rows.num_rows};
  }
  // A chunk's that ends in no distribution serve nobody else.
  if (sample == nullptr || sample->sampleable) CacheCommittedRows(sequence);
  if (sample == nullptr) return {.rows = rows.num_rows};

  uint32_t appended = 0;
  if (sample->num_tokens > 0) {
    if (sequence->phase() == SequencePhase::kPrefilling) LeavePrefill(sequence);
    appended = AppendTokens(sequence,
                            std::span(sample->tokens).first(sample->num_tokens),
                            drawn.top);
    if (sequence->exports()) {
      PublishTail(environment_.transfer, *sequence, drawn);
    }
  }
  if (!sample->sampleable && sequence->generation == rows.generation) {
    End(sequence, NoDistributionError());
  }
  // From the device: one row a token.
  const bool from_host = rows.source == RowSource::kHost;
  return {.tokens = appended, .rows = from_host ? rows.num_rows : appended};
}

void LLMEngine::CountCommitted(const ScheduledRows& rows,
                               const SampleOutput* drawn) {
  SequenceMetadata* sequence = rows.sequence;
  const bool from_host = rows.source == RowSource::kHost;
  sequence->inflight_rows -= rows.num_rows;
  // From the device: one row a token drawn; the others were of drafts refused.
  sequence->computed_rows += from_host ? rows.num_rows : drawn->num_tokens;
  if (drawn == nullptr) return;
  sequence->total_inflight_tokens -= from_host ? 1 : rows.num_rows;
  --sequence->inflight_draws;
  for (uint32_t j = 0; j < drawn->num_verified && j < drawn->num_tokens; ++j) {
    scheduler_.planner()->ObserveAcceptance(
        j, sequence->draft_rates.confidence[j], j + 1 < drawn->num_tokens);
  }
  sequence->draft_rates.num_drafts = drawn->num_drafts;
  sequence->draft_rates.confidence = drawn->draft_probability;
}

// Before its blocks are given up, if it ends: the last tokens' too.
void LLMEngine::CacheCommittedRows(SequenceMetadata* sequence) {
  kv_.CachePrefix(sequence->kv,
                  std::span(sequence->tokens).first(sequence->rows_to_cache()),
                  &sequence->prefix);
}

void LLMEngine::ReportProgress(SequenceMetadata* sequence) const {
  const uint32_t computed = sequence->computed_rows;
  const uint32_t readable = computed == sequence->num_tokens()
                                ? CacheSpec::BlocksFor(computed)
                                : computed / CacheSpec::kBlockTokens;
  if (readable > 0) {
    environment_.transfer.PublishReadable(ExportId(sequence->id.value()),
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
                                 std::span<const SampledToken> drawn,
                                 std::span<const SampledToken> top) {
  const uint32_t index = sequence->output_tokens();
  size_t count = 0;
  bool ends = false;
  while (count < drawn.size() && !ends) {
    sequence->tokens.push_back(drawn[count++].token_id);
    ends = FinishReasonOf(*sequence).has_value();
  }
  CacheCommittedRows(sequence);
  sequence->sink->OnTokens(
      {.first_index = index,
       .tokens = drawn.first(count),
       .top = top,
       .num_top = sequence->request.sampling.num_top_logprobs});
  if (ends && !sequence->exports()) End(sequence, absl::OkStatus());
  return static_cast<uint32_t>(count);
}

void LLMEngine::ReportStep(const WorkerStepState& step,
                           const CommittedRows& committed,
                           absl::Duration commit_time) {
  const StepOutput& output = step.output;
  const absl::Duration device_time = output.device_end - output.device_start;
  device_time_[static_cast<size_t>(step.plan.type)] = device_time;
  if (step.plan.type == StepType::kDecode) {
    scheduler_.planner()->Observe(output.num_rows, device_time);
  }
  const absl::Time ready = device_busy_until_.value_or(output.device_start);
  device_busy_until_ = output.device_end;
  if (!environment_.observer) return;
  StepStats stats = {.step = step.plan.step,
                     .prefill = step.plan.type == StepType::kPrefill,
                     .rows = output.num_rows,
                     .sequences = static_cast<uint32_t>(step.plan.rows.size()),
                     .preemptions = step.plan.preemptions,
                     .wasted_rows = output.num_rows - committed.rows,
                     .tokens = committed.tokens,
                     .schedule_time = step.schedule_time,
                     .commit_time = commit_time,
                     .device_time = device_time,
                     .device_idle = std::max(absl::ZeroDuration(),
                                             output.device_start - ready)};
  if (!output.abandoned) stats.expert_rows = output.expert_rows;
  CountDrafts(step, &stats);
  environment_.observer(stats);
}

}  // namespace baton
