#include "server/worker_rank.h"

namespace baton {

WorkerRank::WorkerRank(const EngineOptions& options, const Parts& parts)
    : executor_(options, CpuStepExecutor::Device{.model = parts.runner,
                                                 .pool = parts.pool,
                                                 .stream = &stream_,
                                                 .clock = parts.clock,
                                                 .cpu = parts.cpu}),
      engine_(options, EngineEnvironment{.executor = &executor_,
                                         .pool = parts.pool,
                                         .transfer = parts.transfer,
                                         .clock = parts.clock,
                                         .observer = parts.observer,
                                         .abort_observer = parts.abort_observer,
                                         .on_work = parts.on_work}) {
  if (options.pipeline_depth > 1 || parts.on_work.run != nullptr) {
    device_ = std::make_unique<DeviceThread>(&stream_);
  }
}

}  // namespace baton
