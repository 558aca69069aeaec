// One client's request as a state machine: events in, actions out.
//
// kQueued waits for its turn; kRunning has attempts (attempt.h), the first one
// at all samples; kFinished is told to the client.
//
// An attempt that finds no workers waits for some, at most worker_wait. One
// that fails by UNAVAILABLE or ABORTED is replaced: at once on other workers if
// some are ready, else after a pause, the longer the more there were, and only
// on workers that are ready; Options::worker_wait bounds how long that may
// take, max_retries how often in a row without a token. A worker that is alive
// and hands the attempt back (UNAVAILABLE with a reason: it drains, its group
// is not whole; or, once there is a token, its queue is full) only costs time.
// Before there is one a worker that is full (RESOURCE_EXHAUSTED with a retry
// delay) is another one's turn, at once; when none is ready that has not
// refused, the client hears what the last one said.
// If no token has come the next attempt is at all samples again. Else each
// sample that is not over goes on in an attempt of its own, from its very
// tokens, with workers of the same fingerprint; one whose tokens meet their end
// already is over without. What the client has been told is not told again:
// text never left this process, known tokens are dropped, events of an attempt
// that is over change nothing.
//
// The `finished` of a sample waits for what the prefill call of the first
// sample says of the prompt, within the grace, and for all log-probabilities of
// the prompt. A prefill call that ends without telling them, though its decode
// server has all it needs, is replaced by an attempt that brings nothing else.
//
// A stop string ends its sample alone: the worker is told to, and goes on with
// the others of the attempt. With the last of them the attempt is over.
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
#include "server/router/attempt.h"
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
    // In a row without a token; and kMaxReplacedAttempts in all.
    uint32_t max_retries = 2;
    // For workers: from its turn on, and from each attempt that was lost.
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
  // The queue is full.
  GenerationActions OnRefused(absl::Status why, absl::Time now);
  // `id_counter` is new for each attempt: the workers of an older one may still
  // be busy ending it.
  GenerationActions OnRoute(uint32_t attempt, Route route, uint64_t id_counter);
  // No worker meets its needs.
  GenerationActions OnNoRoute(uint32_t attempt, absl::Status why,
                              absl::Time now);
  GenerationActions OnPauseEnded(uint32_t attempt);
  // There are too many attempts of all requests to have this one too.
  GenerationActions OnRetryRefused(uint32_t attempt, absl::Status why,
                                   absl::Time now);
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
  const GenerationPlan& plan() const { return plan_; }
  const Attempt& attempt(uint32_t number) const { return attempts_[number]; }
  uint32_t num_attempts() const {
    return static_cast<uint32_t>(attempts_.size());
  }

  RouteNeeds NeedsOf(uint32_t attempt) const;
  v1::PrefillRequest MakePrefillRequest(uint32_t attempt) const;
  v1::DecodeRequest MakeDecodeRequest(uint32_t attempt) const;

  // What the client is to be sent now, in order; each once.
  std::vector<v1::GenerateResponse> TakeResponses();
  uint32_t num_tokens() const;  // Of all samples.

  // REQUIRES: phase() is kFinished.
  const absl::Status& status() const { return status_; }
  // What is known of it at the end, also of a request that failed: the usage of
  // all samples, the times, no reason.
  const v1::GenerateFinished& summary() const { return summary_; }

 private:
  void MoveTo(GenerationPhase to);
  // Null if its calls are not under way.
  Attempt* Running(uint32_t attempt);
  v1::WorkerRequest MakeRequest(const Attempt& attempt, uint32_t rank) const;

  GenerationActions OnPromptLogprobs(Attempt* attempt,
                                     const v1::PromptLogprobs& tokens,
                                     absl::Time now);
  GenerationActions OnTokens(Attempt* attempt, const v1::TokenChunk& tokens,
                             absl::Time now);
  GenerationActions OnStopString(Attempt* attempt, Sample* sample,
                                 absl::Time now);
  GenerationActions OnDecodeFinished(Attempt* attempt,
                                     const v1::DecodeFinished& finished,
                                     absl::Time now);
  void OnReleased(const Attempt& attempt, const v1::PrefillReleased& released);
  void SumUp(const Attempt& attempt, const v1::DecodeFinished& finished);
  // Its prefill call has said all it ever will.
  void OnPrefillOver(Attempt* attempt, absl::Time now,
                     GenerationActions* actions);
  GenerationActions OnAttemptFailed(Attempt* failed, WorkerId worker,
                                    const absl::Status& status, absl::Time now);

  // Attempts at what `failed`, which is over, has left undone; the second is
  // what they have in common.
  std::vector<AttemptGoal> GoalsAfter(const Attempt& failed, AttemptCause cause,
                                      absl::Time now) const;
  AttemptGoal GoalAfter(const Attempt& failed, AttemptCause cause,
                        absl::Time now) const;
  void Begin(const std::vector<AttemptGoal>& goals, absl::Time now,
             GenerationActions* actions);
  std::optional<uint32_t> PromptFrom() const;
  bool AwaitsPrompt(const Attempt& attempt) const;
  bool IsOver(const Attempt& attempt) const;  // All its samples.
  bool IsOver() const;                        // All samples.
  bool MayTellEnds() const;
  bool HasResponses() const;

  // Those that have begun and not ended; then it is over.
  void EndCalls(Attempt* attempt, GenerationActions* actions);
  // What is ready is sent; and if all is, that was it.
  void Settle(absl::Time now, GenerationActions* actions);
  GenerationActions Fail(absl::Status status, absl::Time now);
  void Fail(absl::Status status, absl::Time now, GenerationActions* actions);
  void Finish(absl::Status status, absl::Time now, GenerationActions* actions);

  const Options options_;
  const GenerationPlan plan_;

  GenerationPhase phase_ = GenerationPhase::kQueued;
  std::deque<Attempt> attempts_;  // By number.
  std::vector<WorkerId> avoid_;   // Attempts have failed on them.
  // They were full, one after the other; the last one said so.
  std::vector<WorkerId> refusers_;
  absl::Status refusal_;
  // Of what has been told; empty: nothing.
  std::string fingerprint_;
  PromptLogprobStream prompt_stream_;
  std::deque<Sample> samples_;

  v1::PromptLogprobs prompt_logprobs_;
  v1::GenerateFinished summary_;
  absl::Status status_;
};

}  // namespace baton

#endif  // BATON_SERVER_ROUTER_GENERATION_H_
