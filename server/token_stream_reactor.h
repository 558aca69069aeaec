// One Prefill or Decode call: a TokenSink for the engine, a stream for gRPC.
#ifndef BATON_SERVER_TOKEN_STREAM_REACTOR_H_
#define BATON_SERVER_TOKEN_STREAM_REACTOR_H_

#include <atomic>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "engine/generation_request.h"
#include "engine/llm_engine.h"
#include "engine/token_sink.h"
#include "proto/baton/v1/worker.pb.h"
#include "server/edge/metrics.h"
#include "server/edge/request_gate.h"
#include "server/edge/stream_reactor.h"
#include "server/worker_metrics.h"

namespace baton {

// How messages that wait for the same stream become one.
struct TokenStreamTraits {
  static bool Merge(v1::PrefillResponse* last, v1::PrefillResponse& next);
  static bool Merge(v1::DecodeResponse* last, v1::DecodeResponse& next);
  static size_t Bytes(const v1::PrefillResponse& message);
  static size_t Bytes(const v1::DecodeResponse& message);
};

// What every stream of a worker uses; borrowed, outlives the streams.
struct TokenStreamEnvironment {
  LLMEngine* engine = nullptr;
  const Clock* clock = nullptr;
  RequestGate* gate = nullptr;
  WorkerMetrics* metrics = nullptr;
};

// Response: v1::PrefillResponse or v1::DecodeResponse. The engine's calls come
// on its thread; the rest is StreamReactor's. Leaves the gate when the call is
// over, and logs the request's one line.
template <typename Response>
class TokenStreamReactor final
    : public StreamReactor<Response, TokenStreamTraits>,
      public TokenSink {
 public:
  // REQUIRES: the gate has been entered for it.
  TokenStreamReactor(grpc::CallbackServerContext* context,
                     const TokenStreamEnvironment& environment);

  // Hands the request to the engine, or ends the stream with its refusal.
  void Start(absl::StatusOr<GenerationRequest> request);

  void OnKvHandle(const KvHandle& handle) override;
  void OnProgress(uint32_t computed_tokens) override;
  void OnPromptLogprobs(const ScoredTokens& tokens) override;
  void OnTokens(const ScoredTokens& tokens) override;
  void OnFinished(const GenerationOutcome& outcome) override;

 private:
  void OnPeerGone() override;
  void OnCallOver() override;

  void Refuse(const absl::Status& status);
  // Why the engine ended it, as the caller must take it.
  absl::Status ToPeer(const absl::Status& status) const;
  void MeasureTokens(size_t num_tokens);
  void FlushMetrics();
  void LogEnd(const GenerationOutcome& outcome) const;

  const TokenStreamEnvironment environment_;
  const absl::Time arrival_;
  // Set by Start before the engine knows it.
  RequestId id_;
  uint32_t sample_index_ = 0;
  uint32_t attempt_ = 0;
  bool has_handle_ = false;

  // The engine has no such request any more.
  std::atomic<bool> ended_{false};

  // The engine's thread.
  absl::Time last_token_ = absl::InfinitePast();
  absl::Duration time_to_first_token_;
  HistogramBatch inter_token_latency_;
  uint32_t unflushed_tokens_ = 0;
};

}  // namespace baton

#endif  // BATON_SERVER_TOKEN_STREAM_REACTOR_H_
