// Whether the device's steps end: liveness as a supervisor should see it.
#ifndef BATON_SERVER_STEP_WATCH_H_
#define BATON_SERVER_STEP_WATCH_H_

#include <prometheus/counter.h>
#include <prometheus/registry.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "base/clock.h"
#include "engine/llm_engine.h"

namespace baton {

struct StepWatchOptions {
  // A step is stuck after so long, or after kTimesPredicted times the time that
  // is predicted for it, whichever is later. 0: never.
  absl::Duration timeout = absl::Minutes(1);
};

// One thread, another than the engines', which may be what is stuck. Idle
// ranks, and those of a group that waits to form, have no step in flight: they
// live.
class StepWatch {
 public:
  // A long chunk of a prompt is predicted to take long, and may well take
  // longer than that by its attention to all that is before it.
  static constexpr int kTimesPredicted = 20;

  // Borrows all.
  StepWatch(const StepWatchOptions& options,
            const std::vector<LLMEngine*>& engines, const Clock* clock,
            prometheus::Registry* registry, const std::string& role);

  // False: a step is stuck, which is counted and logged, with the steps before
  // it, when it is found out. To be called now and then.
  bool Check();

 private:
  struct Rank {
    LLMEngine* engine = nullptr;
    std::optional<StepId> stuck = {};  // Logged.
  };
  bool IsStuck(const OldestStep& step, absl::Time now) const;
  void Report(const Rank& rank, size_t local_rank, const OldestStep& step,
              absl::Time now);

  const StepWatchOptions options_;
  const Clock* const clock_;
  prometheus::Counter& stuck_steps_;
  std::vector<Rank> ranks_;
};

}  // namespace baton

#endif  // BATON_SERVER_STEP_WATCH_H_
