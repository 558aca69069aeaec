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
// the counts and times of the prompt.
//
// Until a token has been passed on, an attempt that fails by UNAVAILABLE or
// ABORTED is followed by another one: at once on other workers if some are
// ready, else after a pause, the longer the more there were, and only on
// workers that are ready. Options::worker_wait bounds how long that may take.
// Events of an older attempt change nothing.
#ifndef BATON_SERVER_ROUTER_GENERATION_H_
#define BATON_SERVER_ROUTER_GENERATION_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "proto/baton/v1/inference.pb.h"
#include "proto/baton/v1/worker.pb.h"
#include "server/router/prompt_logprob_stream.h"
#include "server/router/sample_stream.h"
#include "server/router/validate.h"
#include "server/router/worker_state.h"
#include "server/text/tokenizer.h"

namespace baton {

enum class GenerationPhase : uint8_t {
  kQueued,      // Waits for its turn, or for workers.
  kPrefilling,  // Waits for the KV handle.
  kDecoding,    // The decode server works for it.
  kReleasing,   // All tokens are here; the lease has not ended.
  kFinished,
};

constexpr bool IsLegalTransition(GenerationPhase from, GenerationPhase to) {
  using enum GenerationPhase;
  switch (from) {
    case kQueued:  // A pair; a unified worker; no worker, or the client left.
      return to == kPrefilling || to == kDecoding || to == kFinished;
    case kPrefilling:  // The handle came; a retry; an error, or a stop string
                       // in the first token.
      return to == kDecoding || to == kQueued || to == kFinished;
    case kDecoding:  // `finished` came, with the lease open or not; a retry.
      return to == kReleasing || to == kFinished || to == kQueued;
    case kReleasing:  // The lease ended, or its grace did.
      return to == kFinished;
    case kFinished:
      return false;
  }
  return false;
}

// What the owner of a Generation must do after an event, in this order.
struct GenerationActions {
  bool end_prefill = false;  // Cancel the attempt's calls, if they are open.
  bool end_decode = false;
  // Tell the pool: it was unavailable.
  std::optional<WorkerId> suspect = std::nullopt;
  bool queue = false;  // Wait for its turn, then OnAdmitted or OnRefused.
  // Find workers, avoiding avoid() and none worse than worst_route(), then
  // OnRoute or OnRefused.
  bool find_route = false;
  absl::Duration pause = absl::ZeroDuration();  // OnPauseEnded after it.
  std::string_view retry_reason = {};  // Why again; empty the first time.
  bool start_prefill = false;          // With MakeRequest().
  bool start_decode = false;  // With MakeRequest() and kv_handle(), if any.
  bool start_grace = false;   // OnGraceEnded(attempt()) after the grace.
  // prompt_logprobs(), or chunk(), has something to send; clear it then.
  bool send_prompt_logprobs = false;
  bool send_chunk = false;
  // Send finished() if status() is OK, and end the client's call. Exactly once.
  bool finish = false;

  bool operator==(const GenerationActions&) const = default;
};

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
  v1::WorkerRequest MakeRequest() const;
  const std::string& kv_handle() const { return kv_handle_; }

  v1::PromptLogprobs* prompt_logprobs() { return &prompt_logprobs_; }
  v1::GenerateChunk* chunk() { return &chunk_; }
  uint32_t num_tokens() const { return stream_.num_tokens(); }

  // REQUIRES: phase() is kFinished.
  const absl::Status& status() const { return status_; }
  // What is known of it at the end, also of a request that failed.
  const v1::GenerateFinished& finished() const { return finished_; }

 private:
  void MoveTo(GenerationPhase to);
  bool IsOld(uint32_t attempt) const;
  GenerationActions OnPromptLogprobs(const v1::PromptLogprobs& tokens,
                                     absl::Time now);
  GenerationActions OnTokens(const v1::TokenChunk& tokens, absl::Time now);
  bool HasChunkToSend() const;
  GenerationActions OnFirstDecodeMessage();
  GenerationActions OnDecodeFinished(const v1::DecodeFinished& finished,
                                     absl::Time now);
  GenerationActions OnAttemptFailed(WorkerId worker, const absl::Status& status,
                                    absl::Time now);
  void FlushText(GenerationActions* actions);
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
  SampleStream stream_;

  // Of the current attempt.
  uint64_t id_counter_ = 0;
  std::string kv_handle_;
  bool prefill_open_ = false;
  bool decode_answered_ = false;

  v1::PromptLogprobs prompt_logprobs_;
  v1::GenerateChunk chunk_;
  v1::GenerateFinished finished_;
  absl::Status status_;
};

}  // namespace baton

#endif  // BATON_SERVER_ROUTER_GENERATION_H_
