// What a worker tells of a call: the engine's values as messages of its stream.
#ifndef BATON_SERVER_TOKEN_MESSAGES_H_
#define BATON_SERVER_TOKEN_MESSAGES_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "comm/kv_transfer_agent.h"
#include "engine/generation_request.h"
#include "engine/llm_engine.h"
#include "engine/token_sink.h"
#include "proto/baton/v1/worker.pb.h"

namespace baton {

// Of a request.
struct SampleName {
  uint32_t index = 0;
  uint32_t attempt = 0;
};

// How one sample of a call ended, in rising order of what it means for the
// others.
enum class SampleEnd {
  kAborted,   // Alone, unless all were.
  kFinished,  // By itself.
  kFailed,    // And the call with it.
};

// Response, here and below: v1::PrefillResponse or v1::DecodeResponse. Pure,
// but for what reads engines.

// REQUIRES: a PrefillResponse.
template <typename Response>
Response KvHandleMessage(const KvHandle& handle);
template <typename Response>
Response ProgressMessage(uint32_t computed_tokens);

template <typename Response>
Response PromptLogprobsMessage(const ScoredTokens& tokens);
template <typename Response>
Response TokensMessage(const SampleName& sample, const ScoredTokens& tokens);
// REQUIRES: outcome.status is OK.
template <typename Response>
Response EndMessage(const SampleName& sample, const GenerationOutcome& outcome,
                    const std::vector<LLMEngine*>& engines);

// Why the engine ended a sample, as the caller must take it. `is_cut`:
// RequestGate::Cut() was called.
template <typename Response>
absl::Status StatusForPeer(const absl::Status& status, bool is_cut);

// Of all ranks together, and of each. Thread-safe.
v1::GetLoadResponse LoadOf(const std::vector<LLMEngine*>& engines);

// How messages that wait for the same stream become one.
struct TokenStreamTraits {
  static bool Merge(v1::PrefillResponse* last, v1::PrefillResponse& next);
  static bool Merge(v1::DecodeResponse* last, v1::DecodeResponse& next);
  static size_t Bytes(const v1::PrefillResponse& message);
  static size_t Bytes(const v1::DecodeResponse& message);
};

}  // namespace baton

#endif  // BATON_SERVER_TOKEN_MESSAGES_H_
