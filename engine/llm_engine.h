// One rank's engine: from requests to tokens, step by step.
#ifndef BATON_ENGINE_LLM_ENGINE_H_
#define BATON_ENGINE_LLM_ENGINE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "comm/kv_transfer_agent.h"
#include "engine/device_stream.h"
#include "engine/generation_request.h"
#include "engine/model_runner.h"
#include "engine/token_sink.h"
#include "kernels/cpu_context.h"

namespace baton {

struct EngineOptions {
  uint32_t max_running_requests = 64;
  uint32_t max_waiting_requests = 1024;
  // Rows of one prefill step, over all its sequences.
  uint32_t max_batched_tokens = 512;
  // Rows of one sequence in one prefill step; at most max_batched_tokens.
  uint32_t max_chunk_tokens = 512;
  // Decode steps between two prefill steps while both kinds of work wait.
  uint32_t decode_steps_per_prefill = 1;
};

// What a step did, for metrics. A value; given to the observer on the engine
// thread.
struct StepStats {
  bool prefill = false;
  uint32_t rows = 0;
  uint32_t sequences = 0;
  uint32_t preemptions = 0;
  absl::Duration schedule_time;  // CPU time of the loop around the step.
  absl::Duration device_time;    // From launch to the sampling event.
};

// A snapshot, consistent enough for balancing and gauges.
struct EngineLoad {
  uint32_t running_requests = 0;
  uint32_t waiting_requests = 0;
  uint32_t importing_requests = 0;
  uint32_t exporting_requests = 0;
  uint32_t total_blocks = 0;
  uint32_t free_blocks = 0;
  uint32_t exported_blocks = 0;   // Leased to a peer.
  uint32_t importing_blocks = 0;  // Being written by a transfer.
  uint32_t deferred_blocks = 0;   // Freed, but a launched step may read them.
  uint64_t pending_prefill_tokens = 0;
};

// What the engine works with; borrowed, all outlive it.
struct EngineEnvironment {
  ModelRunner* model = nullptr;
  DeviceStream* stream = nullptr;
  KvPool* pool = nullptr;
  KvTransferAgent* transfer =
      nullptr;  // Null: kPrefill and kDecode are refused.
  const Clock* clock = nullptr;
  CpuContext cpu;                                  // For the sample kernel.
  std::function<void(const StepStats&)> observer;  // May be empty.
};

// Submit, Abort, OnTransferEvent, load, Wake: thread-safe. Everything else: the
// engine thread, one at a time. All state of the rank is owned by that thread.
class LLMEngine {
 public:
  LLMEngine(const EngineOptions& options, const EngineEnvironment& environment);
  // REQUIRES: idle().
  ~LLMEngine();
  LLMEngine(const LLMEngine&) = delete;
  LLMEngine& operator=(const LLMEngine&) = delete;

  // Validates, takes a place in the queue, and hands the request to the engine
  // thread. On an error the sink is never called:
  //   INVALID_ARGUMENT    a field, or it can never fit the pool
  //   RESOURCE_EXHAUSTED  max_waiting_requests
  //   ALREADY_EXISTS      never returned here; the sink is told (OnFinished)
  absl::Status Submit(GenerationRequest request, TokenSink* sink);
  // Ends one sample, or all; OnFinished(CANCELLED) follows. Unknown ids:
  // nothing.
  void Abort(const RequestId& id, std::optional<uint32_t> sample_index);
  // The transfer agent's events come in here.
  void OnTransferEvent(KvTransferEvent event);

  const RequestLimits& limits() const;
  EngineLoad load() const;

  // One turn of the loop, without blocking: drain the inbox, commit what is
  // done, plan and launch the next step. True if anything happened.
  bool Advance();
  // No request, no step in flight, no block out.
  bool idle() const;
  // Blocks until there may be something to do, or `timeout`. Only useful when
  // neither Advance nor the stream's Poll did anything.
  void WaitForWork(absl::Duration timeout);
  void Wake();

  // Ends a running sequence's stay on the device, to be recomputed; false if it
  // is not running. What the scheduler does under pressure, here by hand
  // (tests).
  bool Preempt(const RequestId& id, uint32_t sample_index);

  // Dies if the accounting of blocks, slots and sequences does not add up.
  void CheckInvariants() const;

 private:
  class Core;
  std::unique_ptr<Core> core_;
};

}  // namespace baton

#endif  // BATON_ENGINE_LLM_ENGINE_H_
