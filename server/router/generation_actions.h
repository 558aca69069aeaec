// The phases of a Generation, and what it asks of its owner.
#ifndef BATON_SERVER_ROUTER_GENERATION_ACTIONS_H_
#define BATON_SERVER_ROUTER_GENERATION_ACTIONS_H_

#include <cstdint>
#include <optional>
#include <string_view>

#include "absl/time/time.h"
#include "server/router/worker_state.h"

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
    case kDecoding:  // All samples ended, with the lease open or not; a retry.
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
  bool start_prefill = false;          // With MakePrefillRequest().
  bool start_decode = false;           // With MakeDecodeRequest().
  // Tell the decode worker, whose call goes on, to end this sample.
  std::optional<uint32_t> abort_sample = std::nullopt;
  bool start_grace = false;  // OnGraceEnded(attempt()) after the grace.
  bool send = false;         // What TakeResponses() gives.
  bool finish = false;       // End the client's call with status(). Once.

  bool operator==(const GenerationActions&) const = default;
};

}  // namespace baton

#endif  // BATON_SERVER_ROUTER_GENERATION_ACTIONS_H_
