#include "tests/simulation/group/light_step_executor.h"

#include <algorithm>

#include "base/logging.h"

namespace baton {
namespace {

constexpr uint32_t kVocabSize = 1 << 16;

uint64_t Mix(uint64_t value) {
  value += 0x9e3779b97f4a7c15;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
  return value ^ (value >> 31);
}

}  // namespace

uint32_t LightTokenAt(uint64_t seed, uint32_t position) {
  return static_cast<uint32_t>(Mix(seed ^ Mix(position)) % kVocabSize);
}

LightStepExecutor::LightStepExecutor(const EngineOptions& options)
    : slots_(options.max_running_requests) {
  info_.vocab_size = kVocabSize;
  info_.max_context_tokens = 1 << 20;
  info_.cache.groups = {{"rows", kBlockBytes / CacheSpec::kBlockTokens}};
  info_.fingerprint = "light";
}

void LightStepExecutor::LaunchForward(const StepInput* input,
                                      StepOutput* output) {
  uint32_t num_rows = 0;
  for (const StepRows& rows : input->rows) {
    num_rows += rows.num_rows;
    CHECK_LE(rows.num_drafts, max_drafts_);
  }
  CHECK_LE(num_rows, max_rows_);
  CHECK(input->expert_slots.data() == expert_slots_.data() &&
        input->expert_slots.size() == expert_slots_.size());
  launches_.push_back({input, output});
}

DeviceEvent LightStepExecutor::LaunchSample(const StepInput* input,
                                            StepOutput* output) {
  CHECK(launches_.back().input == input && launches_.back().output == output);
  return DeviceEvent(++num_launched_);
}

void LightStepExecutor::RunOldest(bool abandoned) {
  CHECK(!launches_.empty());
  const StepInput& input = *launches_.front().input;
  StepOutput& output = *launches_.front().output;
  launches_.pop_front();
  ++num_done_;
  output.num_rows = 0;
  output.abandoned = abandoned;
  for (const StepRows& rows : input.rows) {
    output.num_rows += rows.num_rows;
    if (rows.sample < 0) continue;
    SampleOutput* drawn = &output.samples[rows.sample];
    *drawn = {};
    if (rows.source == RowSource::kHost) {
      DrawFromHost(input, rows, drawn);
    } else {
      DrawFromDevice(input, rows, drawn);
    }
    MakeDrafts(rows, drawn);
    if (abandoned) drawn->tokens[0].token_id ^= 1;
  }
}

void LightStepExecutor::DrawFromHost(const StepInput& input,
                                     const StepRows& rows,
                                     SampleOutput* drawn) {
  const uint64_t seed = input.samples[rows.sample].params.seed;
  for (uint32_t i = 0; i < rows.num_rows; ++i) {
    CHECK_EQ(input.token_ids[rows.first_token + i],
             LightTokenAt(seed, rows.first_position + i));
  }
  const uint32_t position = rows.first_position + rows.num_rows;
  drawn->num_tokens = 1;
  drawn->tokens[0].token_id = LightTokenAt(seed, position);
  slots_[rows.slot].num_tokens = position + 1;
}

void LightStepExecutor::DrawFromDevice(const StepInput& input,
                                       const StepRows& rows,
                                       SampleOutput* drawn) {
  Slot& slot = slots_[rows.slot];
  const uint32_t base = slot.num_tokens - 1;
  if (base >= rows.end_position) return;
  const uint64_t seed = input.samples[rows.sample].params.seed;
  const uint32_t num_rows =
      std::min({rows.num_rows, 1 + slot.num_drafts, rows.end_position - base});
  drawn->num_verified = num_rows - 1;
  const auto accepted =
      static_cast<uint32_t>(Mix(seed + base) % uint64_t{num_rows});
  for (uint32_t i = 0; i <= accepted; ++i) {
    drawn->tokens[drawn->num_tokens++].token_id =
        LightTokenAt(seed, slot.num_tokens++);
  }
}

void LightStepExecutor::MakeDrafts(const StepRows& rows, SampleOutput* drawn) {
  slots_[rows.slot].num_drafts = drawn->num_tokens > 0 ? rows.num_drafts : 0;
  drawn->num_drafts = slots_[rows.slot].num_drafts;
  drawn->draft_probability.fill(0.5f);
}

}  // namespace baton
