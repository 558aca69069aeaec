// One rank of a worker process: its engine, and the device that it works.
#ifndef BATON_SERVER_WORKER_RANK_H_
#define BATON_SERVER_WORKER_RANK_H_

#include <functional>
#include <memory>

#include "base/clock.h"
#include "comm/kv_pool.h"
#include "comm/kv_transfer_port.h"
#include "engine/cpu_device_stream.h"
#include "engine/cpu_step_executor.h"
#include "engine/device_stream.h"
#include "engine/engine_options.h"
#include "engine/llm_engine.h"
#include "engine/model_runner.h"
#include "kernels/cpu_context.h"
#include "server/device_thread.h"

namespace baton {

// Thread rule: as of what it holds. REQUIRES: the engine is idle when it is
// destroyed.
class WorkerRank {
 public:
  // What it works with; borrowed, all outlive it.
  struct Parts {
    ModelRunner* runner = nullptr;  // With its pool bound.
    KvPool* pool = nullptr;         // The rank's own blocks.
    KvTransferPort transfer = {};
    const Clock* clock = nullptr;
    CpuContext cpu = {};
    // Told of each step on the engine's thread; may be empty.
    std::function<void(const StepStats&)> observer = {};
    std::function<void(const AbortStats&)> abort_observer = {};  // Likewise.
    // As of EngineEnvironment; of a rank in a group, whose device then always
    // has a thread of its own.
    DeviceTask on_work = {};
  };

  WorkerRank(const EngineOptions& options, const Parts& parts);

  LLMEngine& engine() { return engine_; }
  // For whoever turns the engine, if no thread of ours does: null then.
  DeviceStream* stream_to_poll() {
    return device_ == nullptr ? &stream_ : nullptr;
  }

 private:
  CpuDeviceStream stream_;
  CpuStepExecutor executor_;
  LLMEngine engine_;
  // Alone at depth 1 the engine's thread is the device.
  std::unique_ptr<DeviceThread> device_;
};

}  // namespace baton

#endif  // BATON_SERVER_WORKER_RANK_H_
