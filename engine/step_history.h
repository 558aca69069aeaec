// The newest steps of one rank, for whoever asks why it does not go on, and how
// many there were.
#ifndef BATON_ENGINE_STEP_HISTORY_H_
#define BATON_ENGINE_STEP_HISTORY_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "engine/engine_options.h"
#include "engine/ids.h"
#include "engine/scheduler_output.h"
#include "engine/step_io.h"

namespace baton {

// The oldest step in flight.
struct OldestStep {
  StepId id;
  // The device has had nothing before it since: its launch, or the end of the
  // step ahead of it.
  absl::Time since;
  // By the newest step of its kind, for each row as much at most; 0 before the
  // first.
  absl::Duration predicted;
};

// Allocates nothing but the text. Thread-safe; the engine thread alone writes.
class StepHistory {
 public:
  static constexpr size_t kSteps = 64;

  // `planned`: when planning began. REQUIRES: fewer than kSteps are in flight.
  void OnLaunch(const SchedulerOutput& plan, absl::Time planned,
                absl::Time launched) ABSL_LOCKS_EXCLUDED(mutex_);
  // `tokens`: drawn and accepted. REQUIRES: the step was launched, and all
  // before it are done.
  void OnDone(StepId step, const StepOutput& output, uint32_t tokens,
              absl::Time done) ABSL_LOCKS_EXCLUDED(mutex_);

  // A line each, the last one last.
  std::string Lines(absl::Time now) const ABSL_LOCKS_EXCLUDED(mutex_);
  // Of steps that were not abandoned.
  StepCounts counts() const ABSL_LOCKS_EXCLUDED(mutex_);
  // None: no step is in flight.
  std::optional<OldestStep> Oldest() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Step {
    StepId id;
    StepType type = StepType::kDecode;
    uint32_t num_rows = 0;  // In flight: at most.
    uint32_t num_sequences = 0;
    absl::Time planned;
    absl::Time launched;
    bool in_flight = false;
    bool abandoned = false;
    // Once it is done.
    absl::Time done = {};
    absl::Time device_start = {};
    absl::Time device_end = {};
  };
  // What a step took on the device.
  struct Cost {
    absl::Duration time;
    uint32_t num_rows = 1;
  };
  static std::string Line(const Step& step, absl::Time now);

  mutable absl::Mutex mutex_;
  std::array<Step, kSteps> steps_ ABSL_GUARDED_BY(mutex_);  // A ring.
  uint64_t num_launched_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t num_done_ ABSL_GUARDED_BY(mutex_) = 0;
  StepCounts counts_ ABSL_GUARDED_BY(mutex_);
  // Of the newest step of each type.
  std::array<Cost, 2> costs_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace baton

#endif  // BATON_ENGINE_STEP_HISTORY_H_
