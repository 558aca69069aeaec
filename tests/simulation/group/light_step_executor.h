// A device that knows what a request's tokens are to be, and computes nothing.
#ifndef BATON_TESTS_SIMULATION_GROUP_LIGHT_STEP_EXECUTOR_H_
#define BATON_TESTS_SIMULATION_GROUP_LIGHT_STEP_EXECUTOR_H_

#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "comm/expert_dispatch.h"
#include "engine/engine_options.h"
#include "engine/step_executor.h"

namespace baton {

// The token at `position` of a request with this seed, prompt or generated.
uint32_t LightTokenAt(uint64_t seed, uint32_t position);

// Tells, in place of what a model would, the tokens of LightTokenAt; accepts
// drafts at random. Dies if a prompt's last rows are not these tokens, or if a
// row of known tokens is not where its sequence is. One thread.
class LightStepExecutor final : public StepExecutor {
 public:
  // Room of a pool for it.
  static constexpr size_t kBlockBytes = 512;

  explicit LightStepExecutor(const EngineOptions& options);

  const ModelRunnerInfo& info() const override { return info_; }
  void SetAfterStep(DeviceTask) override {}  // Its engine is turned anyway.
  void LaunchForward(const StepInput* input, StepOutput* output) override;
  DeviceEvent LaunchSample(const StepInput* input, StepOutput* output) override;
  bool HasFired(DeviceEvent event) const override {
    return event.value() <= num_done_;
  }
  bool idle() const override { return launches_.empty(); }

  // Of the steps launched from now on; dies beyond, and of other tables than
  // these.
  void SetBounds(uint32_t max_rows, uint32_t max_drafts,
                 std::span<const ExpertSlots> expert_slots) {
    max_rows_ = max_rows;
    max_drafts_ = max_drafts;
    expert_slots_ = expert_slots;
  }
  // Runs the oldest step. `abandoned`: the group ended meanwhile, and the
  // tokens are wrong.
  void RunOldest(bool abandoned);

 private:
  struct Launch {
    const StepInput* input = nullptr;
    StepOutput* output = nullptr;
  };
  struct Slot {
    uint32_t num_tokens = 0;
    uint32_t num_drafts = 0;
  };

  void DrawFromHost(const StepInput& input, const StepRows& rows,
                    SampleOutput* drawn);
  void DrawFromDevice(const StepInput& input, const StepRows& rows,
                      SampleOutput* drawn);
  void MakeDrafts(const StepRows& rows, SampleOutput* drawn);

  ModelRunnerInfo info_;
  std::vector<Slot> slots_;
  std::deque<Launch> launches_;
  uint32_t max_rows_ = 0;
  uint32_t max_drafts_ = 0;
  std::span<const ExpertSlots> expert_slots_;
  uint64_t num_launched_ = 0;
  uint64_t num_done_ = 0;
};

}  // namespace baton

#endif  // BATON_TESTS_SIMULATION_GROUP_LIGHT_STEP_EXECUTOR_H_
