// Puts planned steps on the device and finds the finished ones.
#ifndef BATON_ENGINE_WORKER_H_
#define BATON_ENGINE_WORKER_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/engine_options.h"
#include "engine/step_executor.h"
#include "engine/worker_step_state.h"

namespace baton {

// Owned by the engine. A ring of steps, launched and retired in order.
class Worker {
 public:
  // Borrows the executor. `pool_blocks` bounds a block table.
  Worker(const EngineOptions& options, StepExecutor* executor,
         uint32_t pool_blocks);
  // REQUIRES: idle().
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // The step to plan next, or null while `pipeline_depth` steps are in flight.
  // Planning that comes to nothing needs no call.
  WorkerStepState* NextStep();
  // Copies the plan's inputs and enqueues the forward. Nothing waits.
  void LaunchForward(WorkerStepState* step);
  // Right behind it: the draws, and the event.
  void LaunchSample(WorkerStepState* step);

  int num_in_flight() const { return num_in_flight_; }
  // No step in flight, and nothing of ours left on the device.
  bool idle() const;
  // The i-th oldest launched step.
  const WorkerStepState& in_flight(int i) const;
  // The oldest step if its event has fired, else null.
  WorkerStepState* OldestDone();
  // REQUIRES: OldestDone() returned it, and it is committed.
  void Retire(WorkerStepState* step);

 private:
  StepExecutor* const executor_;
  std::vector<std::unique_ptr<WorkerStepState>> ring_;
  int oldest_ = 0;
  int num_in_flight_ = 0;
};

}  // namespace baton

#endif  // BATON_ENGINE_WORKER_H_
