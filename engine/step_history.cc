#include "engine/step_history.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/logging.h"

namespace baton {

void StepHistory::OnLaunch(const SchedulerOutput& plan, absl::Time planned,
                           absl::Time launched) {
  absl::MutexLock lock(&mutex_);
  CHECK_LT(num_launched_ - num_done_, kSteps);
  steps_[num_launched_++ % kSteps] = {
      .id = plan.step,
      .type = plan.type,
      .num_rows = plan.num_rows,
      .num_sequences = static_cast<uint32_t>(plan.rows.size()),
      .planned = planned,
      .launched = launched,
      .in_flight = true};
}

void StepHistory::OnDone(StepId step, const StepOutput& output, uint32_t tokens,
                         absl::Time done) {
  absl::MutexLock lock(&mutex_);
  CHECK_LT(num_done_, num_launched_);
  Step& oldest = steps_[num_done_++ % kSteps];
  CHECK_EQ(oldest.id, step);
  oldest.in_flight = false;
  oldest.abandoned = output.abandoned;
  oldest.num_rows = output.num_rows;
  oldest.done = done;
  oldest.device_start = output.device_start;
  oldest.device_end = output.device_end;
  if (output.abandoned) return;
  const bool prefills = oldest.type == StepType::kPrefill;
  counts_ += {.prefill_steps = prefills ? 1u : 0u,
              .decode_steps = prefills ? 0u : 1u,
              .prefill_rows = prefills ? output.num_rows : 0,
              .tokens = tokens};
  costs_[static_cast<size_t>(oldest.type)] = {
      .time = output.device_end - output.device_start,
      .num_rows = std::max(output.num_rows, 1u)};
}

StepCounts StepHistory::counts() const {
  absl::MutexLock lock(&mutex_);
  return counts_;
}

std::optional<OldestStep> StepHistory::Oldest() const {
  absl::MutexLock lock(&mutex_);
  if (num_done_ == num_launched_) return std::nullopt;
  const Step& step = steps_[num_done_ % kSteps];
  const Cost& cost = costs_[static_cast<size_t>(step.type)];
  const absl::Time ahead_done = num_done_ == 0
                                    ? absl::InfinitePast()
                                    : steps_[(num_done_ - 1) % kSteps].done;
  return OldestStep{
      .id = step.id,
      .since = std::max(step.launched, ahead_done),
      .predicted =
          cost.time *
          std::max(1.0, static_cast<double>(step.num_rows) / cost.num_rows)};
}

std::string StepHistory::Lines(absl::Time now) const {
  absl::MutexLock lock(&mutex_);
  std::string lines;
  const uint64_t count = std::min<uint64_t>(num_launched_, kSteps);
  for (uint64_t i = num_launched_ - count; i < num_launched_; ++i) {
    lines += Line(steps_[i % kSteps], now);
  }
  return lines;
}

std::string StepHistory::Line(const Step& step, absl::Time now) {
  std::string line = absl::StrCat(
      "step ", step.id.value(),
      step.type == StepType::kPrefill ? " prefill" : " decode", " rows ",
      step.num_rows, " sequences ", step.num_sequences, " planned in ",
      absl::FormatDuration(step.launched - step.planned), " launched ",
      absl::FormatDuration(now - step.launched), " ago ");
  if (step.in_flight) return line + "in flight\n";
  absl::StrAppend(&line, "done after ",
                  absl::FormatDuration(step.done - step.launched), " device ",
                  absl::FormatDuration(step.device_end - step.device_start),
                  step.abandoned ? " abandoned\n" : "\n");
  return line;
}

}  // namespace baton
