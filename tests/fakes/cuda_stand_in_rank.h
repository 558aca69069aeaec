// An engine over the CUDA executor and the stand-in model, under load.
#ifndef BATON_TESTS_FAKES_CUDA_STAND_IN_RANK_H_
#define BATON_TESTS_FAKES_CUDA_STAND_IN_RANK_H_

#include <cstdint>
#include <memory>

#include "base/clock.h"
#include "engine/cuda_step_executor.h"
#include "engine/llm_engine.h"
#include "kernels/cuda/cuda_api.h"
#include "tests/fakes/heap_kv_pool.h"
#include "tests/fakes/stand_in_load.h"

namespace baton {

// One thread, which turns engine and executor. REQUIRES: idle when destroyed.
class CudaStandInRank {
 public:
  static constexpr uint32_t kMaxRunning = 8;

  struct Options {
    uint32_t depth = 2;
    uint32_t drafts = 0;
    uint32_t num_blocks = 64;
    uint64_t num_requests = 60;
    StandInLoad::Options load = {.prompt_tokens = 150, .max_tokens = 40};
  };

  // Borrows the table. Dies where there is no device.
  CudaStandInRank(const Options& options, const CudaApi* api);

  LLMEngine& engine() { return engine_; }
  CudaStepExecutor& executor() { return *executor_; }
  const StandInLoad& load() const { return load_; }
  // Requests whose tokens are not those of a CpuStepExecutor.
  uint64_t CountWrong() const;
  uint32_t num_preemptions() const { return num_preemptions_; }
  uint32_t num_drafts() const { return num_drafts_; }
  // Of the first in the chain.
  uint32_t num_accepted() const { return num_accepted_; }

 private:
  const Options options_;
  const MonotonicClock clock_;
  const std::unique_ptr<CudaStepExecutor> executor_;
  HeapKvPool pool_;
  StandInLoad load_;
  uint32_t num_preemptions_ = 0;
  uint32_t num_drafts_ = 0;
  uint32_t num_accepted_ = 0;
  LLMEngine engine_;
};

}  // namespace baton

#endif  // BATON_TESTS_FAKES_CUDA_STAND_IN_RANK_H_
