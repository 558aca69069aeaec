// What the router knows a worker to be, and the route of one request.
#ifndef BATON_SERVER_ROUTER_WORKER_STATE_H_
#define BATON_SERVER_ROUTER_WORKER_STATE_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/prefix_key.h"
#include "base/strong_int.h"

namespace baton {

// Counts those that have joined since the router's start; never used again.
BATON_DEFINE_STRONG_INT(WorkerId, uint32_t);

enum class WorkerState : uint8_t {
  kUnknown,    // Not heard from since the router's start.
  kReady,      // Serves, and fits the others.
  kSuspect,    // A request found it unavailable: the last choice until probed.
  kUnhealthy,  // A probe failed, or it says that it does not serve.
  kRefused,    // Serves another model, text, role or version of the numerics.
  kLeft,       // Listed no more: what it works for ends there, nothing is new.
};
inline constexpr int kNumWorkerStates = 6;

// Only WorkerPool moves a worker from one state to another.
constexpr bool IsLegalTransition(WorkerState from, WorkerState to) {
  using enum WorkerState;
  // Whoever lists the workers takes it off.
  if (to == kLeft) return from != kLeft;
  switch (from) {
    case kUnknown:    // First probe: good, failed, or a worker that is wrong.
    case kUnhealthy:  // A later one.
      return to == kReady || to == kUnhealthy || to == kRefused;
    case kReady:  // Besides, a request's UNAVAILABLE.
      return to == kReady || to == kSuspect || to == kUnhealthy ||
             to == kRefused;
    case kSuspect:  // The next probe, or one more request's UNAVAILABLE.
      return to == kReady || to == kSuspect || to == kUnhealthy ||
             to == kRefused;
    case kRefused:  // Another process answers at the address, or the others
                    // went away that it did not fit.
      return to == kReady || to == kUnhealthy || to == kRefused;
    case kLeft:  // What comes back has joined anew.
      return false;
  }
  return false;
}

constexpr std::string_view WorkerStateName(WorkerState state) {
  switch (state) {
    case WorkerState::kUnknown:
      return "unknown";
    case WorkerState::kReady:
      return "ready";
    case WorkerState::kSuspect:
      return "suspect";
    case WorkerState::kUnhealthy:
      return "unhealthy";
    case WorkerState::kRefused:
      return "refused";
    case WorkerState::kLeft:
      return "left";
  }
  return "";
}

// What all workers that serve have in common.
struct ServedModel {
  std::string fingerprint;
  uint32_t max_context_tokens = 0;  // The smallest of them.
};

// How good a choice of workers is; the better comes first.
enum class RouteRank : uint8_t {
  kUntried,  // All are ready, none is full, and the request has not failed on
             // them.
  kReady,    // All are ready.
  kSuspect,  // Some are suspects.
  kNone,     // There are none.
};

// The workers of one attempt, and which of its ranks each one is to use.
struct Route {
  std::optional<WorkerId> prefill;  // Absent: `decode` computes the prompt too.
  WorkerId decode;
  uint32_t prefill_rank = 0;
  uint32_t decode_rank = 0;
  // The calls' names to whoever counts failures; 0: none.
  uint64_t prefill_call = 0;
  uint64_t decode_call = 0;
  std::string fingerprint;  // Of both.
};

// What a request asks of its workers.
struct RouteNeeds {
  std::vector<WorkerId> avoid = {};       // They failed it: others first.
  std::vector<WorkerId> exclude = {};     // Never these.
  RouteRank worst = RouteRank::kSuspect;  // Not kNone.
  std::string fingerprint = {};           // Of earlier tokens; empty: any.
  uint32_t context_tokens = 0;            // At least such a context.
  // Whoever has computed this is better; empty: all the same. Borrowed.
  std::span<const PrefixKey> prefix = {};

  // Whether an attempt with these, for `reason` (empty: the first), tries
  // something again: who was refused, and knows nobody else, does not.
  bool IsRetry(std::string_view reason, bool found_route) const {
    return !reason.empty() && (found_route || exclude.empty());
  }
};

}  // namespace baton

#endif  // BATON_SERVER_ROUTER_WORKER_STATE_H_
