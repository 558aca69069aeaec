// One try of a request, or of one sample of it, with workers of its own.
//
//   kRouting ──route──► kPrefilling ──handle──► kDecoding ──done──► kReleasing
//      └──── a unified worker ────────────────────► │                   │
//                            kOver ◄──── (all) ─────┴───────────────────┘
//
// It is one prefill call and one decode call, or one decode call to a unified
// worker. The prefill call stays open as the lease of the prompt's KV: it ends
// by itself once the decode server has pulled everything; the grace timer ends
// it if that takes too long after the decode server's first token. kReleasing
// waits, within the same grace, for what that call says at its end. One that
// ends because the decode server gave up is that server's failure: its own
// call's end is waited for, within the grace too.
#ifndef BATON_SERVER_ROUTER_ATTEMPT_H_
#define BATON_SERVER_ROUTER_ATTEMPT_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "absl/time/time.h"
#include "proto/baton/v1/worker.pb.h"
#include "server/router/validate.h"
#include "server/router/worker_state.h"

namespace baton {

enum class AttemptPhase : uint8_t {
  kRouting,     // Waits for workers.
  kPrefilling,  // Waits for the KV handle.
  kDecoding,    // The decode server works for it.
  kReleasing,   // Its tokens are here; the prefill call has more to say.
  kOver,        // What its calls still say is dropped.
};
inline constexpr int kNumAttemptPhases = 5;

constexpr bool IsLegalTransition(AttemptPhase from, AttemptPhase to) {
  using enum AttemptPhase;
  switch (from) {
    case kRouting:  // A pair; a unified worker; the request is over.
      return to == kPrefilling || to == kDecoding || to == kOver;
    case kPrefilling:  // The handle came, or one that nobody decodes from; a
                       // failure, or a stop string in the first token.
      return to == kDecoding || to == kReleasing || to == kOver;
    case kDecoding:  // All samples ended, with the lease open or not; a
                     // failure.
      return to == kReleasing || to == kOver;
    case kReleasing:  // The lease ended, or its grace did; a failure.
      return to == kOver;
    case kOver:
      return false;
  }
  return false;
}

// In a row, for the same sample; however far each one got.
inline constexpr uint32_t kMaxReplacedAttempts = 64;

// Why there is an attempt.
enum class AttemptCause : uint8_t {
  kFirst,       // The request came.
  kLost,        // One before it was lost with its worker, perhaps by its doing:
                // there are so many tries.
  kHandedBack,  // By a worker that is well: there is so much time.
  kRefused,     // By a worker that is full, before there was a token: others
                // are asked, each once.
};

// What an attempt is to bring. One that resumes has one sample.
struct AttemptGoal {
  AttemptCause cause = AttemptCause::kFirst;
  uint32_t first_sample = 0;
  uint32_t num_samples = 0;  // 0: nothing but the prompt's log-probabilities.
  // So many tokens of its sample were there when it began: it goes on from
  // them.
  uint32_t num_resumed = 0;
  // From this token of the prompt on their log-probabilities; absent: none.
  std::optional<uint32_t> prompt_from = std::nullopt;
  // Attempts before it that were lost with their workers: the last one with
  // those right before it that had brought no token, and all.
  uint32_t num_failed = 0;
  uint32_t num_replaced = 0;
  // How long it may wait for workers, and its first pause meanwhile.
  absl::Time wait_end = absl::InfinitePast();
  absl::Duration first_pause = absl::ZeroDuration();
};

// Thread-compatible; a Generation's.
struct Attempt {
  Attempt(uint32_t its_number, const AttemptGoal& its_goal)
      : number(its_number),
        goal(its_goal),
        next_pause(its_goal.first_pause),
        tells_prompt(its_goal.prompt_from.has_value()) {}

  const uint32_t number;
  const AttemptGoal goal;

  // kRouting: how it waits for workers.
  RouteRank worst_route = RouteRank::kSuspect;
  absl::Duration next_pause;

  // Since then:
  Route route = {};
  uint64_t id_counter = 0;  // Its name at the workers.
  std::string kv_handle = {};
  bool prefill_open = false;
  bool decode_answered = false;
  bool decode_has_kv = false;  // Pulled all of it.
  // So says the prefill call, which has ended. Why, the decode call's end
  // tells.
  bool decode_gave_up = false;
  bool tells_prompt = false;  // Calls that may do so are open, or will be.

  AttemptPhase phase() const { return phase_; }
  bool over() const { return phase_ == AttemptPhase::kOver; }
  // Dies unless IsLegalTransition.
  void MoveTo(AttemptPhase to);

  bool Has(uint32_t sample_index) const {
    return sample_index >= goal.first_sample &&
           sample_index - goal.first_sample < goal.num_samples;
  }
  // Its calls are under way.
  bool is_running() const {
    return phase_ != AttemptPhase::kRouting && !over();
  }

 private:
  AttemptPhase phase_ = AttemptPhase::kRouting;
};

// All but the router's nonce, the rank and the number of samples. `resumed`:
// goal.num_resumed tokens of the sample.
v1::WorkerRequest MakeWorkerRequest(const GenerationPlan& plan,
                                    const Attempt& attempt,
                                    std::span<const uint32_t> resumed);

}  // namespace baton

#endif  // BATON_SERVER_ROUTER_ATTEMPT_H_
