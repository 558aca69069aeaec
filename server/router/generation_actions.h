// The phases of a Generation, and what it asks of its owner.
#ifndef BATON_SERVER_ROUTER_GENERATION_ACTIONS_H_
#define BATON_SERVER_ROUTER_GENERATION_ACTIONS_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/time/time.h"
#include "server/router/worker_state.h"

namespace baton {

enum class GenerationPhase : uint8_t {
  kQueued,   // Waits for its turn.
  kRunning,  // Attempts wait for workers, or workers work for them.
  kFinished,
};

constexpr bool IsLegalTransition(GenerationPhase from, GenerationPhase to) {
  using enum GenerationPhase;
  switch (from) {
    case kQueued:  // Its turn; the queue is full, or the client left.
      return to == kRunning || to == kFinished;
    case kRunning:  // All is told; an error, or the client left.
      return to == kFinished;
    case kFinished:
      return false;
  }
  return false;
}

// What GenerationActions::retry_reason may say.
inline constexpr std::array<std::string_view, 9> kRetryReasons = {
    "slow_reader",   "kv_lost",      "busy",
    "another_model", "handed_back",  "unified_lost",
    "decode_lost",   "prefill_lost", "prompt_lost"};

// What the owner of a Generation must do after an event, in this order.
// Attempts are named by their numbers.
struct GenerationActions {
  struct Pause {
    uint32_t attempt = 0;
    absl::Duration duration;
    bool operator==(const Pause&) const = default;
  };
  struct SampleOfAttempt {
    uint32_t attempt = 0;
    uint32_t sample_index = 0;
    bool operator==(const SampleOfAttempt&) const = default;
  };

  // Cancel these attempts' calls.
  std::vector<uint32_t> end_prefill = {};
  std::vector<uint32_t> end_decode = {};
  // Tell the pool: it was unavailable.
  std::optional<WorkerId> suspect = std::nullopt;
  bool queue = false;  // Wait for its turn, then OnAdmitted or OnRefused.
  // Find workers that meet NeedsOf(), then OnRoute or OnNoRoute. The first time
  // in the order of the attempts.
  std::vector<uint32_t> find_route = {};
  // Why these take others' places; of kRetryReasons.
  std::string_view retry_reason = {};
  std::optional<Pause> pause = std::nullopt;  // OnPauseEnded after it.
  // With MakePrefillRequest(), and with MakeDecodeRequest().
  std::optional<uint32_t> start_prefill = std::nullopt;
  std::optional<uint32_t> start_decode = std::nullopt;
  // Tell the decode worker, whose call goes on, to end this sample.
  std::optional<SampleOfAttempt> abort = std::nullopt;
  // OnGraceEnded after the grace.
  std::optional<uint32_t> start_grace = std::nullopt;
  bool flow = false;    // The client's pace is another: follow it.
  bool send = false;    // What TakeResponses() gives.
  bool finish = false;  // End the client's call with status(). Once.

  bool operator==(const GenerationActions&) const = default;
};

}  // namespace baton

#endif  // BATON_SERVER_ROUTER_GENERATION_ACTIONS_H_
