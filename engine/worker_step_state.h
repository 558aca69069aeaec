// One step between its launch and its commit.
#ifndef BATON_ENGINE_WORKER_STEP_STATE_H_
#define BATON_ENGINE_WORKER_STEP_STATE_H_

#include "absl/time/time.h"
#include "engine/device_stream.h"
#include "engine/scheduler_output.h"
#include "engine/step_io.h"

namespace baton {

enum class StepState {
  kFree,       // In the ring; the scheduler may fill its plan.
  kForwarded,  // The forward is in the stream.
  kSampled,    // So is the sampling, and the event behind it.
};

inline constexpr int kNumStepStates = 3;

constexpr bool IsLegalTransition(StepState from, StepState to) {
  using enum StepState;
  switch (from) {
    case kFree:
      return to == kForwarded;  // LaunchForward.
    case kForwarded:
      return to == kSampled;  // LaunchSample.
    case kSampled:
      return to == kFree;  // Its event has fired, and it is committed.
  }
  return false;
}

// Owned by the engine thread, but its input and output by the device thread
// from launch to event. Everything that the device reads is a copy in here, so
// the engine may change sequences meanwhile. Vectors keep their capacity, so a
// step does not allocate.
struct WorkerStepState {
  StepState state = StepState::kFree;
  SchedulerOutput plan;
  DeviceEvent sample_event;
  absl::Duration schedule_time;
  StepInput input;
  StepOutput output;
};

}  // namespace baton

#endif  // BATON_ENGINE_WORKER_STEP_STATE_H_
