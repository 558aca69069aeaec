// A whole engine over fakes, and what its tokens must be.
#ifndef BATON_TESTS_FAKES_FAKE_RANK_H_
#define BATON_TESTS_FAKES_FAKE_RANK_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "comm/kv_pool.h"
#include "comm/kv_transfer_agent.h"
#include "comm/transport.h"
#include "engine/cpu_step_executor.h"
#include "engine/engine_options.h"
#include "engine/generation_request.h"
#include "engine/llm_engine.h"
#include "tests/fakes/engine_driver.h"
#include "tests/fakes/fake_device_stream.h"
#include "tests/fakes/fake_model_runner.h"
#include "tests/fakes/heap_kv_pool.h"
#include "tests/fakes/simulated_clock.h"

namespace baton {

// An engine with its model, pool and stream, and, over a transport, its
// transfer agent. One thread. REQUIRES: idle when destroyed.
class FakeRank {
 public:
  struct Options {
    EngineOptions engine = {};
    FakeModelRunner::Options model = {};
    uint32_t num_blocks = 64;
    absl::Duration task_time = absl::ZeroDuration();  // On the device.
    // Its fingerprint is the model's.
    KvTransferAgentOptions transfer = {};
  };

  // `transport` null: no transfers. Borrows the clock.
  FakeRank(const Options& options, SimulatedClock* clock,
           std::unique_ptr<Transport> transport = nullptr);
  ~FakeRank();

  LLMEngine& engine() { return *engine_; }
  FakeDeviceStream& stream() { return stream_; }
  FakeModelRunner& model() { return model_; }
  KvPool& pool() { return *pool_; }
  KvTransferAgent* agent() { return agent_.get(); }
  const std::vector<StepStats>& steps() const { return steps_; }
  const std::vector<AbortStats>& aborts() const { return aborts_; }
  void AddTo(EngineDriver* driver);

 private:
  KvPool* MakePool(uint32_t num_blocks);

  FakeModelRunner model_;
  FakeDeviceStream stream_;
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<KvPool> shared_pool_;    // With a transport.
  std::unique_ptr<HeapKvPool> heap_pool_;  // Without.
  KvPool* const pool_;                     // The one of both that is there.
  CpuStepExecutor executor_;
  std::unique_ptr<KvTransferAgent> agent_;
  std::vector<StepStats> steps_;
  std::vector<AbortStats> aborts_;
  std::unique_ptr<LLMEngine> engine_;
};

// A prompt and parameters that depend on `counter` alone: greedy when it is
// even, penalties, biases, alternatives by its other remainders.
GenerationRequest MakeRequest(uint64_t counter, uint32_t prompt_tokens,
                              uint32_t max_tokens);

struct ExpectedTokens {
  std::vector<float> prompt_logprobs;
  std::vector<std::vector<std::pair<uint32_t, float>>> prompt_top;
  std::vector<uint32_t> tokens;
  std::vector<float> logprobs;
  std::vector<std::vector<std::pair<uint32_t, float>>> top;
  // False: the logits behind the last token are no distribution.
  bool sampleable = true;
};

// What the request must give, computed without any engine: one token after the
// other in blocks of its own.
ExpectedTokens ExpectedOf(const FakeModelRunner::Options& model,
                          const GenerationRequest& request);

}  // namespace baton

#endif  // BATON_TESTS_FAKES_FAKE_RANK_H_
