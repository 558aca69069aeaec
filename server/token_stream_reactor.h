// One Prefill or Decode call: TokenSinks for the engine, a stream for gRPC.
#ifndef BATON_SERVER_TOKEN_STREAM_REACTOR_H_
#define BATON_SERVER_TOKEN_STREAM_REACTOR_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "engine/generation_request.h"
#include "engine/llm_engine.h"
#include "engine/token_sink.h"
#include "proto/baton/v1/worker.pb.h"
#include "server/balance_metrics.h"
#include "server/edge/metrics.h"
#include "server/edge/request_gate.h"
#include "server/edge/stream_budget.h"
#include "server/edge/stream_reactor.h"
#include "server/group_metrics.h"
#include "server/token_messages.h"
#include "server/worker_metrics.h"

namespace baton {

// What every stream of a worker uses. It and what it borrows outlive the
// streams.
struct TokenStreamEnvironment {
  // Of the local ranks, all with the same limits.
  std::vector<LLMEngine*> engines = {};
  const Clock* clock = nullptr;
  RequestGate* gate = nullptr;
  WorkerMetrics* metrics = nullptr;
  StreamBudget* streams = nullptr;
  const GroupMetrics* group = nullptr;      // Null: part of none.
  const BalanceMetrics* balance = nullptr;  // Likewise.
};

// Response: v1::PrefillResponse or v1::DecodeResponse. The engine's calls come
// on its thread; the rest is StreamReactor's. Leaves the gate when the call is
// over, and logs the request's one line.
template <typename Response>
class TokenStreamReactor final
    : public StreamReactor<Response, TokenStreamTraits> {
 public:
  // REQUIRES: the gate has been entered for it. num_samples: the request's, or
  // 1 if it is to be refused.
  TokenStreamReactor(grpc::CallbackServerContext* context,
                     const TokenStreamEnvironment& environment,
                     uint32_t num_samples);

  // Hands the request to the engine, or ends the stream with its refusal.
  void Start(absl::StatusOr<GenerationRequest> request, LLMEngine* engine);

 private:
  // What the engine tells of one sample goes to the stream.
  class Sample final : public TokenSink {
   public:
    Sample(TokenStreamReactor* stream, uint32_t index)
        : stream_(stream), index_(index) {}

    void OnKvHandle(const KvHandle& handle) override;
    void OnProgress(uint32_t computed_tokens) override;
    void OnPromptLogprobs(const ScoredTokens& tokens) override;
    void OnTokens(const ScoredTokens& tokens) override;
    void OnFinished(const GenerationOutcome& outcome) override;

    void Abort();  // Any thread.

   private:
    SampleName name() const {
      return {.index = index_, .attempt = stream_->attempt_};
    }

    TokenStreamReactor* const stream_;
    const uint32_t index_;
    // The engine has no such sample any more.
    std::atomic<bool> ended_{false};
    // The engine's thread.
    absl::Time last_token_ = absl::InfinitePast();
  };

  void OnPeerGone() override { AbortSamples(); }
  void OnFlow(bool paused) override;
  void OnCallOver() override { environment_.gate->Leave(this); }

  void Refuse(const absl::Status& status);
  // The first one last: the others may wait for its prompt.
  void AbortSamples();
  // Dropped once a sample has failed.
  void Tell(Response response);
  // The last one ends the stream.
  void OnSampleEnd(bool is_first, const GenerationOutcome& outcome);
  SampleEnd EndOf(const GenerationOutcome& outcome) const;
  // Why the engine ended it, as the caller must take it.
  absl::Status ToPeer(const absl::Status& status) const;
  void MeasureTokens(size_t num_tokens, absl::Time* last_token);
  void FlushMetrics();
  void LogEnd() const;

  const TokenStreamEnvironment& environment_;
  const absl::Time arrival_;
  const uint32_t num_samples_;
  // Set by Start before the engine knows it.
  LLMEngine* engine_ = nullptr;
  RequestId id_;
  uint32_t sample_index_ = 0;
  uint32_t attempt_ = 0;
  std::deque<Sample> samples_;

  // The engine's thread.
  uint32_t num_ended_ = 0;
  SampleEnd end_ = SampleEnd::kAborted;  // The highest yet.
  // Times and transfer of the first sample, output tokens of all, status of the
  // one that decides how the call ends.
  GenerationOutcome total_;
  absl::Time first_token_ = absl::InfinitePast();
  HistogramBatch inter_token_latency_;
  uint32_t unflushed_tokens_ = 0;
};

}  // namespace baton

#endif  // BATON_SERVER_TOKEN_STREAM_REACTOR_H_
