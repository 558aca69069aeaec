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
  const SamplingParams& sampling = sequence.request.sampling;
  SampleInput sample;
  sample.params = {.temperature = sampling.temperature,
                   .top_p = sampling.top_p,
                   .min_p = sampling.min_p,
                   .top_k = sampling.top_k,
                   .seed = sampling.seed,
                   .sample_index = sequence.request.sample_index};
  sample.wants_hidden = sequence.exports();
  to->sample = static_cast<int32_t>(input->samples.size());
  input->samples.push_back(sample);
}

void BuildInput(const SchedulerOutput& plan, StepInput* input) {
  input->token_ids.clear();
  input->block_tables.clear();
  input->rows.clear();
  input->samples.clear();
  input->counted_ids.clear();
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
  const size_t tokens =
      size_t{sequences} * options.max_rows_per_sequence_decoding();
  for (uint32_t i = 0; i < options.pipeline_depth; ++i) {
    auto step = std::make_unique<WorkerStepState>();
    step->plan.rows.reserve(sequences);
    step->input.token_ids.reserve(options.max_rows());
    step->input.block_tables.reserve(pool_blocks);
    step->input.rows.reserve(sequences);
    step->input.samples.reserve(sequences);
    step->output.samples.resize(sequences);
    step->output.top.resize(tokens * kMaxTopLogprobs);
    step->output.hidden.resize(size_t{sequences} *
                               executor->info().drafter_hidden_size());
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
