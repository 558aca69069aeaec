#include "engine/worker.h"

#include <utility>

#include "base/logging.h"
#include "engine/cache_spec.h"

namespace baton {
namespace {

void SetState(WorkerStepState* step, StepState to) {
  CHECK(IsLegalTransition(step->state, to));
  step->state = to;
}

}  // namespace

Worker::Worker(const EngineOptions& options, const Device& device, int depth,
               uint32_t pool_blocks)
    : device_(device) {
  for (int i = 0; i < depth; ++i) {
    auto slot = std::make_unique<Slot>();
    slot->device = &device_;
    WorkerStepState& step = slot->step;
    const uint32_t sequences = options.max_running_requests;
    step.plan.rows.reserve(sequences);
    step.plan.logits_rows.reserve(sequences);
    step.plan.samples.reserve(sequences);
    step.token_ids.reserve(options.max_rows());
    step.positions.reserve(options.max_rows());
    step.sequences.reserve(sequences);
    step.block_tables.reserve(pool_blocks);
    step.sample_params.reserve(sequences);
    step.logits.resize(size_t{options.max_logits_rows()} *
                       device_.model->info().vocab_size);
    step.sampled.tokens.reserve(sequences);
    step.sampled.sampleable.reserve(sequences);
    ring_.push_back(std::move(slot));
  }
}

Worker::~Worker() { CHECK(idle()); }

bool Worker::idle() const {
  return num_in_flight_ == 0 && device_.stream->HasFired(newest_event_);
}

WorkerStepState* Worker::NextStep() {
  const int depth = static_cast<int>(ring_.size());
  if (num_in_flight_ == depth) return nullptr;
  return &ring_[(oldest_ + num_in_flight_) % depth]->step;
}

void Worker::LaunchForward(WorkerStepState* step) {
  SetState(step, StepState::kForwarded);
  CopyInputs(step);
  device_.stream->Enqueue({&Worker::RunForward, SlotOf(step)});
  ++num_in_flight_;
}

void Worker::LaunchSample(WorkerStepState* step) {
  SetState(step, StepState::kSampled);
  BuildSampleParams(step->plan.samples, &step->sample_params);
  device_.stream->Enqueue({&Worker::RunSample, SlotOf(step)});
  step->sample_event = device_.stream->RecordEvent();
  if (device_.after_step.run != nullptr) {
    device_.stream->Enqueue(device_.after_step);
  }
  newest_event_ = device_.stream->RecordEvent();
}

const WorkerStepState& Worker::in_flight(int i) const {
  CHECK_LT(i, num_in_flight_);
  return ring_[(oldest_ + i) % ring_.size()]->step;
}

WorkerStepState* Worker::OldestDone() {
  if (num_in_flight_ == 0) return nullptr;
  WorkerStepState* step = &ring_[oldest_]->step;
  return device_.stream->HasFired(step->sample_event) ? step : nullptr;
}

void Worker::Retire(WorkerStepState* step) {
  CHECK(num_in_flight_ > 0 && step == &ring_[oldest_]->step);
  SetState(step, StepState::kFree);
  oldest_ = (oldest_ + 1) % static_cast<int>(ring_.size());
  --num_in_flight_;
}

void Worker::CopyInputs(WorkerStepState* step) {
  step->token_ids.clear();
  step->positions.clear();
  step->block_tables.clear();
  step->sequences.clear();
  for (const ScheduledRows& rows : step->plan.rows) {
    const SequenceMetadata& sequence = *rows.sequence;
    SequenceRows view;
    view.first_row = static_cast<int32_t>(step->token_ids.size());
    view.num_rows = static_cast<int32_t>(rows.num_rows);
    view.block_table = step->block_tables.data() + step->block_tables.size();
    step->sequences.push_back(view);
    const uint32_t end = rows.first_position + rows.num_rows;
    for (uint32_t i = rows.first_position; i < end; ++i) {
      step->token_ids.push_back(sequence.tokens[i]);
      step->positions.push_back(static_cast<int32_t>(i));
    }
    const uint32_t blocks = CacheSpec::BlocksFor(end);
    CHECK_LE(step->block_tables.size() + blocks, step->block_tables.capacity());
    for (uint32_t i = 0; i < blocks; ++i) {
      step->block_tables.push_back(sequence.kv.blocks()[i].value());
    }
  }
}

Worker::Slot* Worker::SlotOf(const WorkerStepState* step) const {
  for (const std::unique_ptr<Slot>& slot : ring_) {
    if (&slot->step == step) return slot.get();
  }
  LOG(FATAL) << "no step of this worker";
  return nullptr;
}

void Worker::RunForward(void* argument) {
  Slot* slot = static_cast<Slot*>(argument);
  WorkerStepState& step = slot->step;
  step.device_start = slot->device->clock->Now();
  slot->device->model->Forward({.token_ids = step.token_ids,
                                .positions = step.positions,
                                .sequences = step.sequences,
                                .logits_rows = step.plan.logits_rows},
                               LogitsOf(slot));
}

void Worker::RunSample(void* argument) {
  Slot* slot = static_cast<Slot*>(argument);
  WorkerStepState& step = slot->step;
  DrawTokens(slot->device->cpu, LogitsOf(slot), step.plan.samples,
             step.sample_params, &step.sampled);
  step.device_end = slot->device->clock->Now();
}

MatrixView<float> Worker::LogitsOf(Slot* slot) {
  return Dense(slot->step.logits.data(),
               static_cast<int>(slot->step.plan.logits_rows.size()),
               static_cast<int>(slot->device->model->info().vocab_size));
}

}  // namespace baton
