// Puts planned steps on the device and finds the finished ones.
#ifndef BATON_ENGINE_WORKER_H_
#define BATON_ENGINE_WORKER_H_

#include <memory>
#include <vector>

#include "base/clock.h"
#include "engine/device_stream.h"
#include "engine/engine_options.h"
#include "engine/ids.h"
#include "engine/model_runner.h"
#include "engine/worker_step_state.h"
#include "kernels/cpu_context.h"
#include "kernels/matrix_view.h"

namespace baton {

// Owned by the engine. A ring of steps, launched and retired in order.
class Worker {
 public:
  // What the device's tasks use; borrowed, all outlive the worker.
  struct Device {
    ModelRunner* model = nullptr;
    DeviceStream* stream = nullptr;
    const Clock* clock = nullptr;
    CpuContext cpu = {};
    // Runs on the device thread after each step's event; may be empty.
    DeviceTask after_step = {};
  };

  // `depth`: steps in flight at most. `pool_blocks` bounds the block tables.
  Worker(const EngineOptions& options, const Device& device, int depth,
         uint32_t pool_blocks);
  // REQUIRES: idle().
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // The step to plan next, or null while `depth` steps are in flight. Planning
  // that comes to nothing needs no call.
  WorkerStepState* NextStep();
  // Copies the plan's inputs and enqueues the forward. Nothing waits.
  void LaunchForward(WorkerStepState* step);
  // Right behind it: the draws, and the event.
  void LaunchSample(WorkerStepState* step);

  int num_in_flight() const { return num_in_flight_; }
  // No step in flight, and no task of ours left in the stream.
  bool idle() const;
  // The i-th oldest launched step.
  const WorkerStepState& in_flight(int i) const;
  // The oldest step if its event has fired, else null.
  WorkerStepState* OldestDone();
  // REQUIRES: OldestDone() returned it, and it is committed.
  void Retire(WorkerStepState* step);

 private:
  // What a task on the device gets.
  struct Slot {
    const Device* device = nullptr;
    WorkerStepState step;
  };

  static void CopyInputs(WorkerStepState* step);
  Slot* SlotOf(const WorkerStepState* step) const;
  // On the device thread.
  static void RunForward(void* slot);
  static void RunSample(void* slot);
  static MatrixView<float> LogitsOf(Slot* slot);

  const Device device_;
  std::vector<std::unique_ptr<Slot>> ring_;
  int oldest_ = 0;
  int num_in_flight_ = 0;
  DeviceEvent newest_event_;
};

}  // namespace baton

#endif  // BATON_ENGINE_WORKER_H_
