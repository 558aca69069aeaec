// One engine in this process, and how fast it turns prompts into tokens.
#ifndef BATON_BENCH_ENGINE_RUN_H_
#define BATON_BENCH_ENGINE_RUN_H_

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "engine/cpu_device_stream.h"
#include "engine/cpu_step_executor.h"
#include "engine/llm_engine.h"
#include "engine/model/deepseek_v3_runner.h"
#include "engine/model/numerics.h"
#include "kernels/thread_pool.h"
#include "server/device_thread.h"
#include "tests/fakes/heap_kv_pool.h"

namespace baton {

// How the engine works; the tokens are the same for all.
struct EngineVariant {
  std::string name;
  uint32_t pipeline_depth = 1;  // Above 1 the device has a thread of its own.
  uint32_t num_draft_tokens = 0;
  bool adaptive_verification = false;
};

struct BenchEngineOptions {
  std::string model;
  int threads = 1;
  bool pin_threads = true;
  WeightStorage weights = WeightStorage::kF32;
  CacheDtype cache = CacheDtype::kF32;
  Numerics numerics = Numerics::kExact;
  uint32_t max_batch = 1;
  uint32_t max_sequence_tokens = 1;  // Prompt and output.
};

// One batch, from its submission to its last token. All but the prompt's
// figures are of the window from the end of the first decode step of the full
// batch to the end of the last: everything is in it, scheduling, forward,
// sampling and handing out.
struct BatchRun {
  absl::Duration prompt_time;  // To the end of the last prefill step.
  uint32_t prompt_tokens = 0;
  absl::Duration decode_time;
  uint32_t decode_steps = 0;
  uint32_t decode_tokens = 0;
  absl::Duration cpu_time;                 // Of the whole process.
  std::vector<absl::Duration> step_times;  // Between ends; sorted.
  absl::Duration device_idle;
  absl::Duration schedule_time;
  absl::Duration commit_time;
  uint32_t rows = 0;
  uint32_t wasted_rows = 0;
  uint32_t sequence_steps = 0;  // Sequences, summed over steps.
  uint32_t drafts_made = 0;
  std::array<uint32_t, kMaxDraftTokens> drafts_verified = {};
  std::array<uint32_t, kMaxDraftTokens> drafts_accepted = {};
  std::vector<std::vector<uint32_t>> tokens;
};

// One thread calls it. Idle when destroyed.
class BenchEngine {
 public:
  static absl::StatusOr<std::unique_ptr<BenchEngine>> Create(
      const BenchEngineOptions& options, const EngineVariant& variant);

  const ModelRunnerInfo& model() const { return runner_->info(); }
  // Into blocks of the pool from the first on. REQUIRES: idle.
  std::vector<float> LogitsAfter(const std::vector<uint32_t>& prompt);
  // Submits all and turns the loop until they have ended.
  BatchRun Run(const std::vector<GenerationRequest>& requests);

 private:
  // What the observer saw when a step was committed.
  struct Step {
    absl::Time end;
    absl::Duration cpu_time;  // Of the process so far.
    StepStats stats;
  };

  BenchEngine(const BenchEngineOptions& options, EngineOptions engine_options);
  absl::Status Start(const BenchEngineOptions& options, bool adaptive);
  BatchRun Summarise(absl::Time start, uint32_t batch) const;

  EngineOptions engine_options_;
  const MonotonicClock clock_;
  ThreadPool threads_;
  const CpuContext cpu_;
  std::unique_ptr<DeepSeekV3Runner> runner_;
  std::unique_ptr<HeapKvPool> pool_;
  CpuDeviceStream stream_;
  std::unique_ptr<CpuStepExecutor> executor_;
  std::vector<Step> steps_;
  std::unique_ptr<LLMEngine> engine_;
  std::unique_ptr<DeviceThread> device_;  // Null: Run polls the stream.
};

}  // namespace baton

#endif  // BATON_BENCH_ENGINE_RUN_H_
