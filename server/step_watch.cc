#include "server/step_watch.h"

#include <algorithm>
#include <sstream>

#include "base/logging.h"
#include "server/edge/series_maker.h"

namespace baton {

StepWatch::StepWatch(const StepWatchOptions& options,
                     const std::vector<LLMEngine*>& engines, const Clock* clock,
                     prometheus::Registry* registry, const std::string& role)
    : options_(options),
      clock_(clock),
      stuck_steps_(SeriesMaker{registry, role}.OneCounter(
          "baton_stuck_steps_total",
          "Steps that did not end in --stuck_step_timeout.")) {
  for (LLMEngine* engine : engines) ranks_.push_back({.engine = engine});
}

bool StepWatch::Check() {
  if (options_.timeout == absl::ZeroDuration()) return true;
  const absl::Time now = clock_->Now();
  bool live = true;
  for (size_t i = 0; i < ranks_.size(); ++i) {
    Rank& rank = ranks_[i];
    const std::optional<OldestStep> oldest = rank.engine->steps().Oldest();
    if (!oldest.has_value() || !IsStuck(*oldest, now)) {
      if (rank.stuck.has_value()) {
        LOG(WARNING) << "step " << *rank.stuck << " of local_rank " << i
                     << " has ended after all";
      }
      rank.stuck.reset();
      continue;
    }
    live = false;
    if (rank.stuck == oldest->id) continue;
    rank.stuck = oldest->id;
    Report(rank, i, *oldest, now);
  }
  return live;
}

bool StepWatch::IsStuck(const OldestStep& step, absl::Time now) const {
  return now - step.since >
         std::max(options_.timeout, kTimesPredicted * step.predicted);
}

void StepWatch::Report(const Rank& rank, size_t local_rank,
                       const OldestStep& step, absl::Time now) {
  stuck_steps_.Increment();
  LOG(ERROR) << "stuck step " << step.id << " local_rank " << local_rank
             << " without progress for "
             << absl::FormatDuration(now - step.since) << " predicted "
             << absl::FormatDuration(step.predicted) << "; the newest steps:";
  std::istringstream lines(rank.engine->steps().Lines(now));
  for (std::string line; std::getline(lines, line);) LOG(ERROR) << line;
}

}  // namespace baton
