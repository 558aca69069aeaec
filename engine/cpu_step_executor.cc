#include "engine/cpu_step_executor.h"

#include <algorithm>
#include <cstring>

#include "base/logging.h"
#include "engine/cache_spec.h"

namespace baton {

CpuStepExecutor::CpuStepExecutor(const EngineOptions& options,
                                 const Device& device)
    : device_(device),
      slots_(options.max_running_requests),
      batch_(options.max_rows(), options.max_running_requests,
             options.max_logits_rows()),
      drawer_(options, device.cpu) {
  const ModelRunnerInfo& model = device.model->info();
  corrected_.reserve(options.max_running_requests);
  logits_.resize(size_t{options.max_logits_rows()} * model.vocab_size);
  if (!model.has_drafter) {
    CHECK_EQ(options.num_draft_tokens, 0u) << "the model has no drafter";
    return;
  }
  CHECK(device.pool != nullptr);
  CHECK_EQ(model.cache.tail_bytes_per_block, sizeof(float) * model.hidden_size);
  hidden_.resize(size_t{options.max_rows()} * model.hidden_size);
  for (SequenceSlot& slot : slots_) slot.hidden.resize(model.hidden_size);
  drafter_.emplace(options, device.model, &drawer_);
}

void CpuStepExecutor::LaunchForward(const StepInput* input,
                                    StepOutput* output) {
  Launch& launch = launches_[num_launches_.load() % launches_.size()];
  launch = {this, input, output};
  device_.stream->Enqueue(TaskOf<&CpuStepExecutor::Forward>(&launch));
}

DeviceEvent CpuStepExecutor::LaunchSample(const StepInput* input,
                                          StepOutput* output) {
  Launch& launch = launches_[num_launches_++ % launches_.size()];
  CHECK(launch.input == input && launch.output == output);
  device_.stream->Enqueue(TaskOf<&CpuStepExecutor::Sample>(&launch));
  const DeviceEvent done = device_.stream->RecordEvent();
  device_.stream->Enqueue(
      {[](void* self) { static_cast<CpuStepExecutor*>(self)->AfterStep(); },
       this});
  newest_event_ = device_.stream->RecordEvent();
  return done;
}

// Waking a thread on a core that sleeps costs 20 to 50 us, which would keep the
// next step waiting.
void CpuStepExecutor::AfterStep() {
  const bool is_last = ++num_ended_ == num_launches_.load();
  if (is_last && after_step_.run != nullptr) {
    after_step_.run(after_step_.argument);
  }
}

void CpuStepExecutor::Forward(const StepInput& input, StepOutput* output) {
  output->device_start = device_.clock->Now();
  std::ranges::fill(output->expert_rows, 0);
  CorrectRows(input, slots_, &batch_, &corrected_);
  TakeHidden(input);
  output->num_rows = batch_.num_rows();
  // Other ranks of a group wait for this one's part, be it empty.
  if (batch_.num_rows() == 0 && info().num_ranks == 1) return;
  ForwardBatch batch = batch_.view();
  batch.expert_slots = input.expert_slots;
  device_.model->Forward(
      batch, {.logits = Logits(0, batch_.num_logits_rows()),
              .hidden = drafter_.has_value() ? Hidden() : MatrixView<float>(),
              .expert_rows = output->expert_rows});
  if (drafter_.has_value()) WriteBlockTails();
}

void CpuStepExecutor::Sample(const StepInput& input, StepOutput* output) {
  const auto num_scores = static_cast<uint32_t>(input.scores.size());
  const uint32_t num_draws = batch_.num_logits_rows() - num_scores;
  drawer_.DrawTokens(input, corrected_, Logits(0, num_draws), slots_, output);
  drawer_.ScoreRows(input, Logits(num_draws, num_scores), output);
  if (drafter_.has_value()) {
    CHECK(info().num_ranks == 1 || input.num_draft_passes > 0);
    drafter_->MakeDrafts(input, corrected_, Hidden(), slots_, output);
    GiveHidden(input, output);
  }
  output->abandoned = !device_.model->group_status().ok();
  output->device_end = device_.clock->Now();
}

// Where rows do not go on from this slot's last ones, the state before them
// comes from the block before, or from another rank.
void CpuStepExecutor::TakeHidden(const StepInput& input) {
  for (const StepRows& rows : input.rows) {
    SequenceSlot& slot = slots_[rows.slot];
    if (rows.source == RowSource::kDevice) continue;
    if (rows.first_position == 0) slot.has_hidden = false;
    if (!drafter_.has_value()) continue;
    const uint32_t block = rows.first_position / CacheSpec::kBlockTokens;
    if (rows.hidden != nullptr) {
      std::copy_n(rows.hidden, info().hidden_size, slot.hidden.data());
      slot.has_hidden = true;
    } else if (block > 0 &&
               rows.first_position % CacheSpec::kBlockTokens == 0) {
      std::memcpy(slot.hidden.data(),
                  TailOf(input.block_tables[rows.first_block + block - 1]),
                  info().cache.tail_bytes_per_block);
      slot.has_hidden = true;
    }
  }
}

// Of a draft's row it is provisional, as is the row itself.
void CpuStepExecutor::WriteBlockTails() {
  const ForwardBatch batch = batch_.view();
  for (const SequenceRows& sequence : batch.sequences) {
    for (int32_t i = 0; i < sequence.num_rows; ++i) {
      const int32_t row = sequence.first_row + i;
      const int32_t position = batch.positions[row];
      if ((position + 1) % CacheSpec::kBlockTokens != 0) continue;
      std::memcpy(
          TailOf(sequence.block_table[position / CacheSpec::kBlockTokens]),
          Hidden().row(row), info().cache.tail_bytes_per_block);
    }
  }
}

std::byte* CpuStepExecutor::TailOf(uint32_t block) const {
  return device_.pool->block(BlockId(block)) + info().cache.tail_offset_bytes();
}

void CpuStepExecutor::GiveHidden(const StepInput& input,
                                 StepOutput* output) const {
  const size_t width = info().hidden_size;
  for (size_t i = 0; i < input.rows.size(); ++i) {
    const StepRows& rows = input.rows[i];
    if (rows.sample < 0 || !input.samples[rows.sample].wants_hidden) continue;
    const size_t newest = corrected_[i].first_row + corrected_[i].num_rows - 1;
    std::copy_n(&hidden_[newest * width], width,
                &output->hidden[static_cast<size_t>(rows.sample) * width]);
  }
}

MatrixView<float> CpuStepExecutor::Logits(uint32_t first_row,
                                          uint32_t num_rows) {
  return Dense(logits_.data() + size_t{first_row} * info().vocab_size,
               static_cast<int>(num_rows), static_cast<int>(info().vocab_size));
}

MatrixView<float> CpuStepExecutor::Hidden() {
  return Dense(hidden_.data(), static_cast<int>(batch_.num_rows()),
               static_cast<int>(info().hidden_size));
}

}  // namespace baton
