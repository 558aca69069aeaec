// One sample of one request, inside the engine.
#ifndef BATON_ENGINE_SEQUENCE_H_
#define BATON_ENGINE_SEQUENCE_H_

#include <algorithm>
#include <cstdint>
#include <optional>
#include <ostream>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "engine/cache_spec.h"
#include "engine/generation_request.h"
#include "engine/ids.h"
#include "engine/kv_block_range.h"
#include "engine/prefix_chain.h"
#include "engine/token_sink.h"
#include "engine/verification_planner.h"

namespace baton {

enum class SequencePhase {
  kWaiting,      // In the queue: no blocks.
  kImportingKv,  // Has its blocks; a transfer fills them.
  kPrefilling,  // Has its blocks; steps compute its rows, the last one samples.
  kDecoding,    // One row and one new token a step.
  kExported,    // kPrefill, all computed: the lease is open.
  kEnding,      // Over, but a transfer may still touch its blocks.
  kFinished,    // The sink has been told.
};
inline constexpr int kNumSequencePhases = 7;

constexpr bool IsLegalTransition(SequencePhase from, SequencePhase to) {
  using enum SequencePhase;
  switch (from) {
    case kWaiting:
      return to == kImportingKv ||  // Admitted with a handle.
             to == kPrefilling ||   // Admitted without, or again.
             to == kFinished;       // Aborted, late, or a duplicate.
    case kImportingKv:
      return to == kDecoding ||  // KvImportEnded, OK.
             to == kEnding ||    // Aborted or late: CancelImport.
             to == kFinished;    // KvImportEnded, an error.
    case kPrefilling:
      return to == kDecoding ||  // The token after its last row is sampled.
             to == kExported ||  // The same, in kPrefill.
             to == kWaiting ||   // Preempted.
             to == kEnding ||  // Aborted, late, failed in kPrefill: EndExport.
             to == kFinished;  // The same in other modes; KvExportEnded early.
    case kDecoding:
      return to == kWaiting ||  // Preempted.
             to == kFinished;   // Stop token, length, abort, deadline, failure.
    case kExported:
      return to == kEnding ||  // Aborted or late: EndExport.
             to == kFinished;  // KvExportEnded.
    case kEnding:
      return to == kFinished;  // KvImportEnded or KvExportEnded.
    case kFinished:
      return false;
  }
  return false;
}

std::ostream& operator<<(std::ostream& out, SequencePhase phase);

// An abort's arrival, or a deadline.
struct UnwantedSince {
  absl::Time time;
  StepId newest_step;  // Launched by then.
};

// Owned by the engine. Steps in flight point to it, so it is destroyed by
// DeferredRelease. Rows are KV rows: row i belongs to tokens[i].
struct SequenceMetadata {
  SequenceMetadata(GenerationRequest from, TokenSink* to, absl::Time now);

  // Constant after construction; its token_ids have moved to `tokens`.
  GenerationRequest request;
  TokenSink* const sink;
  const absl::Time submit_time;
  const uint32_t num_tokens_at_submit;

  // Set once, before it reaches the engine thread. Rows of whole blocks from
  // the beginning that may be found in the prefix cache, or left there.
  uint32_t max_cached_rows = 0;
  PrefixChain prefix;  // Knows the blocks of the tokens at submission.

  // Set once, when it reaches the engine thread.
  SequenceId id;
  // Of several samples of one request: the first one's id. Their ids follow
  // each other, and the tokens at submission are all the same. The first alone
  // imports, and tells of the prompt.
  std::optional<SequenceId> first_sample;
  // The number of tokens at which it ends: max_tokens or the context's end.
  uint32_t max_total_tokens = 0;

  std::vector<uint32_t> tokens;  // Prompt and generated; committed.
  // The next prompt token to tell with its log-probability; the prompt's length
  // when there is none. Told once, recomputed or not.
  uint32_t next_prompt_logprob = 0;
  uint32_t computed_rows = 0;  // Rows [0, computed) are committed...
  uint32_t inflight_rows = 0;  // ...and at most as many behind them launched.
  // Tokens that launched steps draw: at most, and at least.
  uint32_t total_inflight_tokens = 0;
  uint32_t inflight_draws = 0;
  // While it runs: its place in the device's memory.
  uint32_t slot = 0;
  // A launched step draws its newest token, or has: the slot knows it.
  bool on_device = false;
  uint32_t num_drafts = 0;  // At most, that the newest launched step makes.
  DraftRates draft_rates;   // Of the newest committed one.
  // Counts its departures from the running set: a launched row of an older
  // generation is ignored.
  uint32_t generation = 0;
  // Whoever reads its tokens is behind: no rows until it has caught up.
  bool paused = false;
  KvBlockRange kv;
  bool imported = false;  // The handle's KV has come; never asked for again.
  // [hidden_size], with `imported` and a drafter: of the prompt's last
  // position.
  std::vector<float> imported_hidden;
  absl::Status end_status;  // In kEnding: what the sink will be told.
  RequestActivity ended_in = RequestActivity::kQueued;
  std::optional<UnwantedSince> unwanted;  // Set while it has blocks.

  // For the outcome.
  uint32_t cached_tokens = 0;  // Not computed for it at its first admission...
  uint32_t decode_cached_tokens = 0;  // ...or not imported for it.
  absl::Time first_admitted = absl::InfiniteFuture();
  absl::Duration prefill_time;
  absl::Duration transfer_time;
  uint64_t transfer_bytes = 0;

  SequencePhase phase() const { return phase_; }
  // Dies unless IsLegalTransition.
  void SetPhase(SequencePhase to);

  void MarkUnwanted(const UnwantedSince& since) {
    const bool has_blocks = kv.state() != KvRangeState::kFree;
    if (has_blocks && !unwanted.has_value()) unwanted = since;
  }

  uint32_t num_tokens() const { return static_cast<uint32_t>(tokens.size()); }
  uint32_t output_tokens() const {
    return num_tokens() - request.original_prompt_tokens;
  }
  uint32_t launched_rows() const { return computed_rows + inflight_rows; }
  // When all that is launched is committed, if it has not ended: its length is
  // at most, and at least.
  uint32_t max_launched_tokens() const {
    return num_tokens() + total_inflight_tokens;
  }
  uint32_t min_launched_tokens() const { return num_tokens() + inflight_draws; }
  // Positions from here on never have a row: the last token needs none.
  uint32_t end_position() const {
    return exports() ? num_tokens_at_submit : max_total_tokens - 1;
  }
  // Rows [score_begin, score_end) tell of the next token, which is the
  // prompt's.
  uint32_t score_begin() const { return next_prompt_logprob - 1; }
  uint32_t score_end() const { return request.original_prompt_tokens - 1; }
  bool tells_prompt() const { return score_begin() < score_end(); }
  // Rows that it may have from another sample: whole blocks. The last row is
  // its own, to draw behind.
  uint32_t shareable_rows() const {
    if (!first_sample.has_value()) return 0;
    return (num_tokens_at_submit - 1) / CacheSpec::kBlockTokens *
           CacheSpec::kBlockTokens;
  }
  // Whole blocks that it may have from the prefix cache: the row to draw behind
  // is its own, and those that tell of the prompt.
  uint32_t max_prefix_blocks() const {
    const uint32_t rows = tells_prompt() ? score_begin() : num_tokens() - 1;
    return std::min(rows, max_cached_rows) / CacheSpec::kBlockTokens;
  }
  // Committed, of known tokens, and of use to others.
  uint32_t rows_to_cache() const {
    return std::min({computed_rows, num_tokens(), max_cached_rows});
  }
  bool exports() const { return request.mode == RequestMode::kPrefill; }
  // Waits for a transfer, not for steps, to fill its blocks.
  bool imports() const { return request.kv_handle.has_value() && !imported; }

 private:
  SequencePhase phase_ = SequencePhase::kWaiting;
};

// Why the sequence ends with its newest token, or nullopt to go on.
std::optional<FinishReason> FinishReasonOf(const SequenceMetadata& sequence);

// Its sink's OnFinished, with all that is known of it.
void TellFinished(const SequenceMetadata& sequence, const absl::Status& status,
                  absl::Time now);

}  // namespace baton

#endif  // BATON_ENGINE_SEQUENCE_H_
