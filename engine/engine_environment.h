// What an engine works with, and what its group says of a step.
#ifndef BATON_ENGINE_ENGINE_ENVIRONMENT_H_
#define BATON_ENGINE_ENGINE_ENVIRONMENT_H_

#include <cstdint>
#include <functional>
#include <span>

#include "base/clock.h"
#include "comm/expert_dispatch.h"
#include "comm/kv_pool.h"
#include "comm/kv_transfer_port.h"
#include "engine/device_stream.h"
#include "engine/engine_options.h"
#include "engine/step_executor.h"

namespace baton {

// What the engine works with; borrowed, all outlive it.
struct EngineEnvironment {
  StepExecutor* executor = nullptr;
  KvPool* pool = nullptr;
  // None: kPrefill and handles are refused.
  KvTransferPort transfer = {};
  const Clock* clock = nullptr;
  std::function<void(const StepStats&)> observer = {};         // May be empty.
  std::function<void(const AbortStats&)> abort_observer = {};  // Likewise.
  // Called, on any thread, when a turn may find something to do: where more
  // than this engine is turned by one thread, which then does not WaitForWork.
  DeviceTask on_work = {};
};

// What a step of a group is on all its ranks.
struct GroupStep {
  // Of each layer with experts; the tables outlive the step.
  std::span<const ExpertSlots> expert_slots = {};
  uint32_t num_draft_passes = 0;  // As of StepInput.
  // Nobody had anything to do: that the device was idle means nothing.
  bool is_behind_pause = false;
};

}  // namespace baton

#endif  // BATON_ENGINE_ENGINE_ENVIRONMENT_H_
