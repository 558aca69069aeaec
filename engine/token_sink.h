// The only door out of the engine.
#ifndef BATON_ENGINE_TOKEN_SINK_H_
#define BATON_ENGINE_TOKEN_SINK_H_

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "comm/kv_transfer_agent.h"

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
  uint32_t cached_tokens = 0;
  uint32_t output_tokens = 0;  // Resumed ones included.
  absl::Duration queue_time;
  absl::Duration prefill_time;
  absl::Duration transfer_time;
  uint64_t transfer_bytes = 0;
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
  // first_token_index counts from the end of the original prompt.
  virtual void OnTokens(uint32_t first_token_index,
                        std::span<const uint32_t> token_ids,
                        std::span<const float> logprobs) = 0;
  // Exactly once. In kPrefill: the lease has ended and the blocks are free.
  virtual void OnFinished(const GenerationOutcome& outcome) = 0;
};

}  // namespace baton

#endif  // BATON_ENGINE_TOKEN_SINK_H_
