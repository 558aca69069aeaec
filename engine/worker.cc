#include "engine/worker.h"

#include <algorithm>

#include "base/logging.h"
#include "engine/cache_spec.h"

namespace baton {
namespace {

void SetState(WorkerStepState* step, StepState to) {
  CHECK(IsLegalTransition(step->state, to));
  step->state = to;
}

void AddTokens(const ScheduledRows& rows, StepInput* input, StepRows* to) {
  to->first_token = static_cast<uint32_t>(input->token_ids.size());
  if (rows.source == RowSource::kDevice) return;
  const auto first = rows.sequence->tokens.begin() + rows.first_position;
  input->token_ids.insert(input->token_ids.end(), first, first + rows.num_rows);
}

void AddBlocks(const SequenceMetadata& sequence, StepInput* input,
               StepRows* to) {
  to->first_block = static_cast<uint32_t>(input->block_tables.size());
  CHECK_LE(input->block_tables.size() + sequence.kv.blocks().size(),
           input->block_tables.capacity());
  for (BlockId block : sequence.kv.blocks()) {
    input->block_tables.push_back(block.value());
  }
}

void AddSample(const ScheduledRows& rows, StepInput* input, StepRows* to) {
  if (!rows.draws) return;
  const SequenceMetadata& sequence = *rows.sequence;
  const GenerationRequest& request = sequence.request;
  const SamplingParams& sampling = request.sampling;
  SampleInput sample;
  // The request outlives the step, and does not change.
  sample.params = {
      .temperature = sampling.temperature,
      .top_p = sampling.top_p,
      .min_p = sampling.min_p,
      .top_k = sampling.top_k,
      .seed = sampling.seed,
      .sample_index = request.sample_index,
      .repetition_penalty = sampling.repetition_penalty,
      .presence_penalty = sampling.presence_penalty,
      .frequency_penalty = sampling.frequency_penalty,
      .logit_bias = sampling.logit_bias,
      .forbidden = request.stop_token_ids,
      .num_top_logprobs = sampling.num_top_logprobs,
      .logprobs_after_truncation = sampling.logprobs_after_truncation};
  sample.forbidden_before = static_cast<uint32_t>(std::min<uint64_t>(
      uint64_t{request.original_prompt_tokens} + request.min_tokens,
      sequence.max_total_tokens));
  sample.num_prompt_tokens = request.original_prompt_tokens;
  sample.counts = sampling.has_penalties();
  if (sample.counts && rows.source == RowSource::kHost) {
    sample.first_counted = static_cast<uint32_t>(input->counted_ids.size());
    sample.num_counted = sequence.num_tokens();
    input->counted_ids.insert(input->counted_ids.end(), sequence.tokens.begin(),
                              sequence.tokens.end());
  }
  sample.wants_hidden = sequence.exports();
  to->sample = static_cast<int32_t>(input->samples.size());
  input->samples.push_back(sample);
}

void AddScores(const ScheduledRows& rows, StepInput* input, StepRows* to) {
  if (rows.num_scored == 0) return;
  const SequenceMetadata& sequence = *rows.sequence;
  to->first_scored_row = rows.first_scored - rows.first_position;
  to->num_scored = rows.num_scored;
  to->first_score = static_cast<uint32_t>(input->scores.size());
  for (uint32_t i = 0; i < rows.num_scored; ++i) {
    input->scores.push_back(
        {.token_id = sequence.tokens[rows.first_scored + i + 1],
         .num_top_logprobs = sequence.request.sampling.num_top_logprobs});
  }
}

void BuildInput(const SchedulerOutput& plan, StepInput* input) {
  input->token_ids.clear();
  input->block_tables.clear();
  input->rows.clear();
  input->samples.clear();
  input->counted_ids.clear();
  input->scores.clear();
  for (const ScheduledRows& rows : plan.rows) {
    const SequenceMetadata& sequence = *rows.sequence;
    StepRows to = {.slot = sequence.slot,
                   .source = rows.source,
                   .first_position = rows.first_position,
                   .num_rows = rows.num_rows,
                   .end_position = sequence.end_position(),
                   .prompt_tokens = sequence.request.original_prompt_tokens,
                   .num_drafts = rows.num_drafts};
    AddTokens(rows, input, &to);
    AddBlocks(sequence, input, &to);
    AddSample(rows, input, &to);
    AddScores(rows, input, &to);
    if (!sequence.imported_hidden.empty() &&
        rows.first_position == sequence.num_tokens_at_submit) {
      to.hidden = sequence.imported_hidden.data();
    }
    input->rows.push_back(to);
  }
}

}  // namespace

Worker::Worker(const EngineOptions& options, StepExecutor* executor,
               uint32_t pool_blocks)
    : executor_(executor) {
  CHECK(options.pipeline_depth >= 1 &&
        options.pipeline_depth <= kMaxPipelineDepth);
  const uint32_t sequences = options.max_running_requests;
  // Several sequences may have the same block.
  const size_t blocks =
      size_t{sequences} *
      std::min(pool_blocks,
               CacheSpec::BlocksFor(executor->info().max_context_tokens));
  const size_t tokens =
      size_t{sequences} * options.max_rows_per_sequence_decoding();
  for (uint32_t i = 0; i < options.pipeline_depth; ++i) {
    auto step = std::make_unique<WorkerStepState>();
    step->plan.rows.reserve(sequences);
    step->input.token_ids.reserve(options.max_rows());
    step->input.block_tables.reserve(blocks);
    step->input.rows.reserve(sequences);
    step->input.samples.reserve(sequences);
    step->input.counted_ids.reserve(size_t{pool_blocks} *
                                    CacheSpec::kBlockTokens);
    step->input.scores.reserve(options.max_logits_rows());
    step->output.samples.resize(sequences);
    step->output.scores.resize(options.max_logits_rows());
    step->output.score_top.resize(size_t{options.max_logits_rows()} *
                                  kMaxTopLogprobs);
    step->output.top.resize(tokens * kMaxTopLogprobs);
    step->output.hidden.resize(size_t{sequences} *
                               executor->info().drafter_hidden_size());
    step->output.expert_rows.resize(executor->info().num_counted_slots());
    ring_.push_back(std::move(step));
  }
}

Worker::~Worker() { CHECK(idle()); }

bool Worker::idle() const { return num_in_flight_ == 0 && executor_->idle(); }

WorkerStepState* Worker::NextStep() {
  const int depth = static_cast<int>(ring_.size());
  if (num_in_flight_ == depth) return nullptr;
  return ring_[(oldest_ + num_in_flight_) % depth].get();
}

void Worker::LaunchForward(WorkerStepState* step) {
  SetState(step, StepState::kForwarded);
  BuildInput(step->plan, &step->input);
  executor_->LaunchForward(&step->input, &step->output);
  ++num_in_flight_;
}

void Worker::LaunchSample(WorkerStepState* step) {
  SetState(step, StepState::kSampled);
  step->sample_event = executor_->LaunchSample(&step->input, &step->output);
}

const WorkerStepState& Worker::in_flight(int i) const {
  CHECK_LT(i, num_in_flight_);
  return *ring_[(oldest_ + i) % ring_.size()];
}

WorkerStepState* Worker::OldestDone() {
  if (num_in_flight_ == 0) return nullptr;
  WorkerStepState* step = ring_[oldest_].get();
  return executor_->HasFired(step->sample_event) ? step : nullptr;
}

void Worker::Retire(WorkerStepState* step) {
  CHECK(num_in_flight_ > 0 && step == ring_[oldest_].get());
  SetState(step, StepState::kFree);
  oldest_ = (oldest_ + 1) % static_cast<int>(ring_.size());
  --num_in_flight_;
}

}  // namespace baton
