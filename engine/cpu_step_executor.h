// Steps on the CPU: tasks in a device stream, over a ModelRunner.
#ifndef BATON_ENGINE_CPU_STEP_EXECUTOR_H_
#define BATON_ENGINE_CPU_STEP_EXECUTOR_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "comm/kv_pool.h"
#include "engine/device_stream.h"
#include "engine/drafter.h"
#include "engine/engine_options.h"
#include "engine/model_runner.h"
#include "engine/sequence_slot.h"
#include "engine/step_batch.h"
#include "engine/step_executor.h"
#include "engine/step_io.h"
#include "engine/token_drawer.h"
#include "kernels/cpu_context.h"

namespace baton {

class CpuStepExecutor final : public StepExecutor {
 public:
  // Borrowed, all outlive the executor.
  struct Device {
    ModelRunner* model = nullptr;
    // The model's; needed where it has a drafter.
    const KvPool* pool = nullptr;
    DeviceStream* stream = nullptr;
    const Clock* clock = nullptr;
    CpuContext cpu = {};
  };

  CpuStepExecutor(const EngineOptions& options, const Device& device);

  const ModelRunnerInfo& info() const override { return device_.model->info(); }
  void SetAfterStep(DeviceTask task) override { after_step_ = task; }
  void LaunchForward(const StepInput* input, StepOutput* output) override;
  DeviceEvent LaunchSample(const StepInput* input, StepOutput* output) override;
  bool HasFired(DeviceEvent event) const override {
    return device_.stream->HasFired(event);
  }
  bool idle() const override { return HasFired(newest_event_); }

 private:
  // What a task gets. A ring, so that launching never allocates.
  struct Launch {
    CpuStepExecutor* executor = nullptr;
    const StepInput* input = nullptr;
    StepOutput* output = nullptr;
  };

  // A task that does `kPart` of a launch.
  template <auto kPart>
  static DeviceTask TaskOf(Launch* launch) {
    return {[](void* argument) {
              const Launch& mine = *static_cast<Launch*>(argument);
              (mine.executor->*kPart)(*mine.input, mine.output);
            },
            launch};
  }

  // On the device thread.
  void AfterStep();
  void Forward(const StepInput& input, StepOutput* output);
  void Sample(const StepInput& input, StepOutput* output);
  void TakeHidden(const StepInput& input);
  void WriteBlockTails();
  std::byte* TailOf(uint32_t block) const;
  void GiveHidden(const StepInput& input, StepOutput* output) const;
  MatrixView<float> Hidden();
  MatrixView<float> Logits(uint32_t first_row, uint32_t num_rows);

  const Device device_;
  DeviceTask after_step_;
  DeviceEvent newest_event_;
  std::array<Launch, kMaxPipelineDepth> launches_;
  std::atomic<uint64_t> num_launches_{0};  // Written by the engine thread.

  // All below: the device thread.
  uint64_t num_ended_ = 0;  // Steps.
  std::vector<SequenceSlot> slots_;
  StepBatch batch_;  // Of the step that runs.
  std::vector<CorrectedRows> corrected_;
  std::vector<float> logits_;  // [logits rows, vocab]
  std::vector<float> hidden_;  // [rows, hidden_size], with a drafter.
  TokenDrawer drawer_;
  std::optional<Drafter> drafter_;  // Where the model has one.
};

}  // namespace baton

#endif  // BATON_ENGINE_CPU_STEP_EXECUTOR_H_
