// The device as the engine sees it: it runs steps in the order of their launch.
#ifndef BATON_ENGINE_STEP_EXECUTOR_H_
#define BATON_ENGINE_STEP_EXECUTOR_H_

#include "engine/device_stream.h"
#include "engine/model_runner.h"
#include "engine/step_io.h"

namespace baton {

// Owns the sequence slots. A slot is device memory that carries a sequence from
// step to step: how long it is, its newest token, its drafts, its penalty
// counts. Steps run in order, so a slot may be given to another sequence as
// soon as the last step with the old one is launched. Thread rule: the engine
// thread; what it launches runs elsewhere.
class StepExecutor {
 public:
  virtual ~StepExecutor() = default;
  virtual const ModelRunnerInfo& info() const = 0;
  // Runs on the device's side behind the event of each step that leaves it
  // nothing to do; may run behind others too. Set once, before any launch.
  virtual void SetAfterStep(DeviceTask task) = 0;
  // Enqueue alone: nothing waits. Input and output are the device's until the
  // event has fired; they outlive it.
  // Length correction, the forward pass.
  virtual void LaunchForward(const StepInput* input, StepOutput* output) = 0;
  // Right behind it: draws, verification, the next drafts, the event.
  virtual DeviceEvent LaunchSample(const StepInput* input,
                                   StepOutput* output) = 0;
  virtual bool HasFired(DeviceEvent event) const = 0;
  // Nothing of ours is left on the device, the task behind the last event
  // included.
  virtual bool idle() const = 0;
};

}  // namespace baton

#endif  // BATON_ENGINE_STEP_EXECUTOR_H_
