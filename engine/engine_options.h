// Limits of one engine, and what it tells about itself.
#ifndef BATON_ENGINE_ENGINE_OPTIONS_H_
#define BATON_ENGINE_ENGINE_OPTIONS_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/time/time.h"
#include "comm/step_ids.h"
#include "engine/step_curve.h"

namespace baton {

inline constexpr uint32_t kMaxDraftTokens = 5;
inline constexpr uint32_t kMaxPipelineDepth = 3;

struct EngineOptions {
  uint32_t max_running_requests = 64;
  uint32_t max_waiting_requests = 1024;
  // Rows of one prefill step, over all its sequences.
  uint32_t max_batched_tokens = 512;
  // Rows of one sequence in one prefill step; at most max_batched_tokens.
  uint32_t max_chunk_tokens = 512;
  // Decode steps between two prefill steps while both kinds of work wait.
  uint32_t decode_steps_per_prefill = 1;
  // Steps in flight at most. 1: each is committed before the next is planned.
  uint32_t pipeline_depth = 2;
  // Blocks that are committed are kept as long as they may be, and found by
  // their tokens.
  bool prefix_cache = true;
  // Drafts a sequence and step, up to kMaxDraftTokens; 0: no speculation.
  uint32_t num_draft_tokens = 0;
  // How many of them to verify: those that pay, by the time of steps of so many
  // rows as measured at start. Empty: all.
  std::vector<StepCurvePoint> step_curve = {};

  uint32_t max_rows_per_sequence_decoding() const {
    return 1 + num_draft_tokens;
  }
  // The capacities that a ModelRunner for this engine needs. The drafter has a
  // row more a sequence than the forward.
  uint32_t max_rows() const {
    return std::max(max_batched_tokens, max_logits_rows()) +
           max_running_requests;
  }
  uint32_t max_logits_rows() const {
    return max_running_requests * max_rows_per_sequence_decoding();
  }
};

// What a step did, for metrics. A value; given to the observer on the engine
// thread.
struct StepStats {
  // From 1, without a gap; so the n-th step of every rank of a group is the
  // same step of the group.
  StepId step = {};
  bool prefill = false;
  uint32_t rows = 0;
  uint32_t sequences = 0;
  uint32_t preemptions = 0;
  // Rows computed in vain: of drafts refused, and behind or after an end.
  uint32_t wasted_rows = 0;
  uint32_t draws = 0;  // Sequences that drew.
  uint32_t drafts_made = 0;
  // By place in the chain.
  std::array<uint32_t, kMaxDraftTokens> drafts_verified = {};
  std::array<uint32_t, kMaxDraftTokens> drafts_accepted = {};
  uint32_t tokens = 0;           // Drawn and accepted.
  absl::Duration schedule_time;  // Of the engine's turn that launched the step.
  absl::Duration commit_time;    // Of this step's results.
  absl::Duration device_time;    // From the forward's start to sampling's end.
  // From the end of the step before to this one's start, while there was work.
  absl::Duration device_idle;
  // As in StepOutput; valid during the call. Empty where the rank is alone, and
  // of a step that its group has abandoned.
  std::span<const uint32_t> expert_rows = {};
};

// What became of the blocks of a sequence that was aborted, or whose deadline
// passed; given to the observer on the engine thread when they are free.
struct AbortStats {
  absl::Duration time;  // Since the abort came, or the deadline.
  uint64_t steps = 0;   // Launched meanwhile.
};

// Steps that are done, since the engine's start.
struct StepCounts {
  uint64_t prefill_steps = 0;
  uint64_t decode_steps = 0;
  uint64_t prefill_rows = 0;
  uint64_t tokens = 0;  // Drawn and accepted.

  StepCounts& operator+=(const StepCounts& other) {
    prefill_steps += other.prefill_steps;
    decode_steps += other.decode_steps;
    prefill_rows += other.prefill_rows;
    tokens += other.tokens;
    return *this;
  }
};

// Of the prefix cache, since the engine's start, each admission counted.
struct PrefixCacheCounts {
  uint64_t queried_tokens = 0;
  uint64_t hit_tokens = 0;
  uint64_t evicted_blocks = 0;

  PrefixCacheCounts& operator+=(const PrefixCacheCounts& other) {
    queried_tokens += other.queried_tokens;
    hit_tokens += other.hit_tokens;
    evicted_blocks += other.evicted_blocks;
    return *this;
  }
};

// A snapshot, consistent enough for balancing and gauges.
struct EngineLoad {
  uint32_t running_requests = 0;  // Importing ones included.
  uint32_t waiting_requests = 0;
  uint32_t importing_requests = 0;
  uint32_t exporting_requests = 0;
  uint32_t paused_requests = 0;  // Of those running and waiting.
  uint32_t total_blocks = 0;
  uint32_t free_blocks = 0;       // Cached ones that nobody has included.
  uint32_t cached_blocks = 0;     // Found by their prefix, free or not.
  uint32_t exported_blocks = 0;   // Leased to a peer.
  uint32_t importing_blocks = 0;  // Being written by a transfer.
  uint32_t deferred_blocks = 0;   // Freed, but a launched step may read them.
  uint32_t inflight_tokens = 0;   // Launched, not committed; at most.
  uint64_t pending_prefill_tokens = 0;
  StepCounts steps = {};
  PrefixCacheCounts prefix_cache = {};

  EngineLoad& operator+=(const EngineLoad& other) {
    running_requests += other.running_requests;
    waiting_requests += other.waiting_requests;
    importing_requests += other.importing_requests;
    exporting_requests += other.exporting_requests;
    paused_requests += other.paused_requests;
    total_blocks += other.total_blocks;
    free_blocks += other.free_blocks;
    cached_blocks += other.cached_blocks;
    exported_blocks += other.exported_blocks;
    importing_blocks += other.importing_blocks;
    deferred_blocks += other.deferred_blocks;
    inflight_tokens += other.inflight_tokens;
    pending_prefill_tokens += other.pending_prefill_tokens;
    steps += other.steps;
    prefix_cache += other.prefix_cache;
    return *this;
  }
};

}  // namespace baton

#endif  // BATON_ENGINE_ENGINE_OPTIONS_H_
