// What a simulated worker is made of, in plain numbers: routers' code sees no
// engine.
#ifndef BATON_TESTS_SIMULATION_SYSTEM_WORKER_SHAPE_H_
#define BATON_TESTS_SIMULATION_SYSTEM_WORKER_SHAPE_H_

#include <cstdint>

#include "absl/time/time.h"

namespace baton {

// As FakeModelRunner's. The same for all workers of a system.
struct ModelShape {
  uint32_t vocab_size = 64;
  uint32_t max_context_tokens = 64;
  uint32_t right_drafts = 200;  // Of 256.
};

// As EngineOptions, KvTransferAgentOptions and FakeRank's.
struct WorkerShape {
  ModelShape model;
  uint32_t max_running_requests = 1;
  uint32_t max_waiting_requests = 1;
  uint32_t max_chunk_tokens = 1;
  uint32_t max_batched_tokens = 1;
  uint32_t decode_steps_per_prefill = 1;
  uint32_t pipeline_depth = 1;
  uint32_t num_draft_tokens = 0;
  uint32_t num_blocks = 1;
  // Of transfers.
  bool maps_regions = true;
  absl::Duration lease;
  absl::Duration import_timeout;
  absl::Duration refresh_interval;
  absl::Duration drain_timeout;
  uint32_t max_blocks_in_flight = 1;
};

inline constexpr uint32_t kShapeBlockTokens = 64;
inline constexpr uint32_t kShapeMaxDrafts = 5;
inline constexpr uint32_t kShapeMaxDepth = 3;

}  // namespace baton

#endif  // BATON_TESTS_SIMULATION_SYSTEM_WORKER_SHAPE_H_
