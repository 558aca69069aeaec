// One step between its launch and its commit.
#ifndef BATON_ENGINE_WORKER_STEP_STATE_H_
#define BATON_ENGINE_WORKER_STEP_STATE_H_

#include <cstdint>
#include <vector>

#include "absl/time/time.h"
#include "engine/device_stream.h"
#include "engine/model_runner.h"
#include "engine/sampler.h"
#include "engine/scheduler_output.h"
#include "kernels/sample.h"

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

  // Input.
  std::vector<uint32_t> token_ids;     // [rows]
  std::vector<int32_t> positions;      // [rows]
  std::vector<uint32_t> block_tables;  // All sequences', one after the other.
  std::vector<SequenceRows> sequences;
  std::vector<SampleParams> sample_params;  // [samples]

  // Output.
  std::vector<float> logits;  // [logits rows, vocabulary]
  SamplerOutput sampled;
  absl::Time device_start;
  absl::Time device_end;
};

}  // namespace baton

#endif  // BATON_ENGINE_WORKER_STEP_STATE_H_
