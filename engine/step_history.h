// The newest steps of one rank, for whoever asks why it does not go on, and how
// many there were.
#ifndef BATON_ENGINE_STEP_HISTORY_H_
#define BATON_ENGINE_STEP_HISTORY_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/time/time.h"
#include "engine/engine_options.h"
#include "engine/ids.h"
#include "engine/scheduler_output.h"
#include "engine/step_io.h"

namespace baton {

// Allocates nothing but the text. Owned by the engine thread.
class StepHistory {
 public:
  static constexpr size_t kSteps = 64;

  // `planned`: when planning began. REQUIRES: fewer than kSteps are in flight.
  void OnLaunch(const SchedulerOutput& plan, absl::Time planned,
                absl::Time launched);
  // `tokens`: drawn and accepted. REQUIRES: the step was launched, and all
  // before it are done.
  void OnDone(StepId step, const StepOutput& output, uint32_t tokens,
              absl::Time done);

  // A line each, the last one last.
  std::string Lines(absl::Time now) const;
  // Of steps that were not abandoned.
  const StepCounts& counts() const { return counts_; }

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
  static std::string Line(const Step& step, absl::Time now);

  std::array<Step, kSteps> steps_;  // A ring.
  uint64_t num_launched_ = 0;
  uint64_t num_done_ = 0;
  StepCounts counts_;
};

}  // namespace baton

#endif  // BATON_ENGINE_STEP_HISTORY_H_
