// Limits of one engine, and what it tells about itself.
#ifndef BATON_ENGINE_ENGINE_OPTIONS_H_
#define BATON_ENGINE_ENGINE_OPTIONS_H_

#include <algorithm>
#include <cstdint>

#include "absl/time/time.h"

namespace baton {

// Drafts of one sequence in one step; as many as the widest drafter gives.
inline constexpr uint32_t kMaxDraftTokens = 5;

struct EngineOptions {
  uint32_t max_running_requests = 64;
  uint32_t max_waiting_requests = 1024;
  // Rows of one prefill step, over all its sequences.
  uint32_t max_batched_tokens = 512;
  // Rows of one sequence in one prefill step; at most max_batched_tokens.
  uint32_t max_chunk_tokens = 512;
  // Decode steps between two prefill steps while both kinds of work wait.
  uint32_t decode_steps_per_prefill = 1;

  // The capacities that a ModelRunner for this engine needs.
  uint32_t max_rows() const {
    return std::max(max_batched_tokens, max_running_requests);
  }
  uint32_t max_logits_rows() const { return max_running_requests; }
};

// What a step did, for metrics. A value; given to the observer on the engine
// thread.
struct StepStats {
  bool prefill = false;
  uint32_t rows = 0;
  uint32_t sequences = 0;
  uint32_t preemptions = 0;
  absl::Duration schedule_time;  // Of the engine's turn that launched the step.
  absl::Duration device_time;    // From the forward's start to sampling's end.
};

// A snapshot, consistent enough for balancing and gauges.
struct EngineLoad {
  uint32_t running_requests = 0;  // Importing ones included.
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

}  // namespace baton

#endif  // BATON_ENGINE_ENGINE_OPTIONS_H_
