// One client's request as a state machine: events in, actions out.
//
//   kQueued ──route──► kPrefilling ──handle──► kDecoding ──done──► kReleasing
//   │ ▲ └──── a unified worker ────────────────► │ │                   │
//   │ └──── retry ◄──── (both) ──────────────────┘ │                   │
//   └──── (all) ────► kFinished ◄──────────────────┴───────────────────┘
//
// An attempt is one prefill call and one decode call (or one decode call to a
// unified worker). The prefill call stays open as the lease of the prompt's KV:
// it ends by itself once the decode server has pulled everything; the grace
// timer ends it if that takes too long after the decode server's first token.
// kReleasing waits, within the same grace, for what that call says at its end:
// the counts and times of the prompt. So does the `finished` of a sample that
// ends before the others.
//
// A stop string ends its sample alone: the worker is told to, and goes on with
// the others. With the last sample the calls are over.
//
// Until a token has been passed on, an attempt that fails by UNAVAILABLE or
// ABORTED is followed by another one: at once on other workers if some are
// ready, else after a pause, the longer the more there were, and only on
// workers that are ready. Options::worker_wait bounds how long that may take.
// Events of an older attempt change nothing.
#ifndef BATON_SERVER_ROUTER_GENERATION_H_
#define BATON_SERVER_ROUTER_GENERATION_H_

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "proto/baton/v1/inference.pb.h"
#include "proto/baton/v1/worker.pb.h"
#include "server/router/generation_actions.h"
#include "server/router/prompt_logprob_stream.h"
#include "server/router/sample.h"
#include "server/router/validate.h"
#include "server/router/worker_state.h"
#include "server/text/tokenizer.h"

namespace baton {

// Pure and thread-compatible: the owner serialises events.
class Generation final {
 public:
  struct Options {
    uint64_t router_nonce = 0;
    uint32_t max_retries = 2;
    // After a failed attempt, for workers that are ready.
    absl::Duration worker_wait = absl::Seconds(5);
    absl::Time arrival;
    const Tokenizer* tokenizer = nullptr;  // Borrowed; outlives this.
  };

  // REQUIRES: the plan has a seed.
  Generation(GenerationPlan plan, const Options& options);
  Generation(const Generation&) = delete;
  Generation& operator=(const Generation&) = delete;

  GenerationActions OnArrived();
  // Its turn has come.
  GenerationActions OnAdmitted(absl::Time now);
  // `id_counter` is new for each attempt: the workers of an older one may still
  // be busy ending it.
  GenerationActions OnRoute(Route route, uint64_t id_counter);
  // The queue is full, or no worker can serve.
  GenerationActions OnRefused(absl::Status why, absl::Time now);
  GenerationActions OnPauseEnded();
  GenerationActions OnPrefillMessage(uint32_t attempt,
                                     v1::PrefillResponse* message,
                                     absl::Time now);
  GenerationActions OnPrefillEnd(uint32_t attempt, const absl::Status& status,
                                 absl::Time now);
  GenerationActions OnDecodeMessage(uint32_t attempt,
                                    const v1::DecodeResponse& message,
                                    absl::Time now);
  GenerationActions OnDecodeEnd(uint32_t attempt, const absl::Status& status,
                                absl::Time now);
  GenerationActions OnGraceEnded(uint32_t attempt, absl::Time now);
  // The client cancelled, its deadline passed, it reads too slowly, or the
  // router cuts it.
  GenerationActions OnEarlyEnd(absl::Status why, absl::Time now);

  GenerationPhase phase() const { return phase_; }
  uint32_t attempt() const { return attempt_; }
  const Route& route() const { return route_; }
  const GenerationPlan& plan() const { return plan_; }
  // Workers whose attempts have failed.
  const std::vector<WorkerId>& avoid() const { return avoid_; }
  RouteRank worst_route() const { return worst_route_; }

  // Of the current attempt.
  uint64_t id_counter() const { return id_counter_; }
  v1::PrefillRequest MakePrefillRequest() const;
  v1::DecodeRequest MakeDecodeRequest() const;

  // What the client is to be sent now, in order; each once.
  std::vector<v1::GenerateResponse> TakeResponses();
  uint32_t num_tokens() const;  // Of all samples.

  // REQUIRES: phase() is kFinished.
  const absl::Status& status() const { return status_; }
  // What is known of it at the end, also of a request that failed: the usage of
  // all samples, the times, no reason.
  const v1::GenerateFinished& summary() const { return summary_; }

 private:
  v1::WorkerRequest MakeRequest(uint32_t local_rank) const;
  void MoveTo(GenerationPhase to);
  bool IsOld(uint32_t attempt) const;
  GenerationActions OnPromptLogprobs(const v1::PromptLogprobs& tokens,
                                     absl::Time now);
  GenerationActions OnTokens(const v1::TokenChunk& tokens, absl::Time now);
  GenerationActions OnStopString(Sample* sample, absl::Time now);
  GenerationActions OnDecodeFinished(const v1::DecodeFinished& finished,
                                     absl::Time now);
  void SumUp(const v1::DecodeFinished& finished);
  GenerationActions OnAttemptFailed(WorkerId worker, const absl::Status& status,
                                    absl::Time now);
  bool IsOver() const;  // All samples.
  bool MayTellEnds() const;
  bool HasEndToTell() const;
  bool HasResponses() const;
  // The current attempt's calls, those that have begun and not ended.
  GenerationActions EndCalls() const;
  GenerationActions Fail(absl::Status status, absl::Time now);
  void Finish(absl::Status status, absl::Time now, GenerationActions* actions);

  const Options options_;
  const GenerationPlan plan_;

  GenerationPhase phase_ = GenerationPhase::kQueued;
  uint32_t attempt_ = 0;
  Route route_;
  std::vector<WorkerId> avoid_;
  RouteRank worst_route_ = RouteRank::kSuspect;
  absl::Time wait_end_ = absl::InfinitePast();  // For workers.
  absl::Duration next_pause_;
  PromptLogprobStream prompt_stream_;
  std::deque<Sample> samples_;

  // Of the current attempt.
  uint64_t id_counter_ = 0;
  std::string kv_handle_;
  bool prefill_open_ = false;
  bool decode_answered_ = false;
  bool decode_has_kv_ = false;  // Pulled all of it.

  v1::PromptLogprobs prompt_logprobs_;
  v1::GenerateFinished summary_;
  absl::Status status_;
};

}  // namespace baton

#endif  // BATON_SERVER_ROUTER_GENERATION_H_
