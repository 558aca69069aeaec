// The only door out of the engine.
#ifndef BATON_ENGINE_TOKEN_SINK_H_
#define BATON_ENGINE_TOKEN_SINK_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "comm/kv_transfer.h"
#include "kernels/sample.h"

namespace baton {

enum class FinishReason { kStopToken, kLength };

// What a request was doing when it ended.
enum class RequestActivity {
  kQueued,    // Waiting for a place in the batch.
  kPrefill,   // Its prompt was being computed.
  kTransfer,  // Its KV was being pulled, here or by a peer.
  kDecode,
};

struct GenerationOutcome {
  absl::Status status;  // Not OK: reason has no meaning.
  FinishReason reason = FinishReason::kLength;
  RequestActivity ended_in = RequestActivity::kQueued;
  uint32_t prompt_tokens = 0;
  // Of the prompt: found in the prefix cache, or in another sample's blocks,
  // and so not computed here; with a handle, found in the cache and not
  // imported.
  uint32_t cached_tokens = 0;
  uint32_t decode_cached_tokens = 0;
  uint32_t output_tokens = 0;  // Resumed ones included.
  absl::Duration queue_time;
  absl::Duration prefill_time;
  absl::Duration transfer_time;
  uint64_t transfer_bytes = 0;
};

// Consecutive tokens with their log-probabilities. Borrowed for the call.
struct ScoredTokens {
  uint32_t first_index = 0;
  std::span<const SampledToken> tokens = {};
  // One row of kMaxTopLogprobs a token; none where no alternatives were asked.
  std::span<const SampledToken> top = {};
  uint32_t num_top = 0;  // Of each row.

  // The most probable tokens in the place of tokens[i], falling: num_top, or as
  // many as are possible there.
  std::span<const SampledToken> TopOf(size_t i) const {
    if (num_top == 0) return {};
    const auto row = top.subspan(i * kMaxTopLogprobs, num_top);
    const auto end = std::find_if(
        row.begin(), row.end(),
        [](const SampledToken& t) { return t.token_id == kNoToken; });
    return row.first(static_cast<size_t>(end - row.begin()));
  }
};

// One request's listener. Called on the engine thread, in order, never after
// OnFinished; must not block. Submit borrows it until OnFinished returns.
class TokenSink {
 public:
  virtual ~TokenSink() = default;
  // kPrefill alone: blocks are reserved; a peer may open the transfer.
  virtual void OnKvHandle(const KvHandle& handle) = 0;
  // kPrefill alone: prompt tokens computed so far.
  virtual void OnProgress(uint32_t computed_tokens) = 0;
  // Of the prompt, once each and in order, before the first OnTokens;
  // first_index counts from its beginning. Not in kDecode with a handle.
  virtual void OnPromptLogprobs(const ScoredTokens& tokens) = 0;
  // Generated; first_index counts from the end of the original prompt.
  virtual void OnTokens(const ScoredTokens& tokens) = 0;
  // Exactly once. In kPrefill: the lease has ended and the blocks are free.
  virtual void OnFinished(const GenerationOutcome& outcome) = 0;
};

}  // namespace baton

#endif  // BATON_ENGINE_TOKEN_SINK_H_
