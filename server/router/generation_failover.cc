// What a Generation does for workers that it lost, or can't find.
#include <algorithm>
#include <string_view>
#include <vector>

#include "server/edge/grpc_status.h"
#include "server/router/generation.h"

namespace baton {
namespace {

// Between two looks for a worker: the first, and the longest.
constexpr absl::Duration kFirstPause = absl::Milliseconds(20);
constexpr absl::Duration kLongestPause = absl::Milliseconds(320);

// Since it was probed another process has taken its place.
bool IsAnotherModel(const absl::Status& status) {
  return absl::IsFailedPrecondition(status) &&
         ErrorReason(status) == "WRONG_FINGERPRINT";
}

// A worker that shuts down cancels its calls; we did not ask for that.
bool IsRetryable(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsAborted(status) ||
         absl::IsCancelled(status) || IsAnotherModel(status);
}

absl::Status WorkersLost() {
  return WithRetryDelay(
      WithReason(absl::UnavailableError("a worker was lost in every attempt"),
                 "WORKER_LOST"),
      absl::Seconds(1));
}

std::string_view RetryReason(const Route& route, WorkerId lost,
                             const absl::Status& status) {
  if (absl::IsAborted(status)) return "kv_lost";
  if (absl::IsResourceExhausted(status)) return "busy";
  if (IsAnotherModel(status)) return "another_model";
  if (!route.prefill.has_value()) return "unified_lost";
  return lost == route.decode ? "decode_lost" : "prefill_lost";
}

}  // namespace

RouteNeeds Generation::NeedsOf(uint32_t attempt) const {
  return {.avoid = avoid_,
          .worst = attempts_[attempt].worst_route,
          .fingerprint = fingerprint_,
          .context_tokens = static_cast<uint32_t>(plan_.prompt_ids.size()) +
                            plan_.max_tokens};
}

GenerationActions Generation::OnNoRoute(uint32_t number, absl::Status why,
                                        absl::Time now) {
  Attempt& attempt = attempts_[number];
  if (attempt.phase() != AttemptPhase::kRouting) return {};
  if (now >= attempt.wait_end) return Fail(std::move(why), now);
  const absl::Duration pause =
      std::min(attempt.next_pause, attempt.wait_end - now);
  attempt.next_pause = std::min(2 * attempt.next_pause, kLongestPause);
  return {.pause = {{.attempt = number, .duration = pause}}};
}

GenerationActions Generation::OnPauseEnded(uint32_t number) {
  Attempt& attempt = attempts_[number];
  if (attempt.phase() != AttemptPhase::kRouting) return {};
  attempt.worst_route = RouteRank::kReady;
  return {.find_route = {number}};
}

void Generation::OnPrefillOver(Attempt* attempt, absl::Time now,
                               GenerationActions* actions) {
  const bool lost_prompt = AwaitsPrompt(*attempt);
  attempt->tells_prompt = false;
  if (attempt->phase() == AttemptPhase::kReleasing) {
    attempt->MoveTo(AttemptPhase::kOver);
  }
  if (!lost_prompt) return Settle(now, actions);
  actions->retry_reason = "prompt_lost";
  Begin({PromptGoalAfter(*attempt)}, now, actions);
}

GenerationActions Generation::OnAttemptFailed(Attempt* failed, WorkerId worker,
                                              const absl::Status& status,
                                              absl::Time now) {
  // Who has tokens already can't come back later.
  const bool is_busy = absl::IsResourceExhausted(status) && num_tokens() > 0;
  if (!is_busy && !IsRetryable(status)) return Fail(status, now);
  GenerationActions actions;
  actions.retry_reason = RetryReason(failed->route, worker, status);
  if (absl::IsAborted(status) && failed->route.prefill.has_value()) {
    // The KV was lost on the way: it may have been either end's fault.
    avoid_.push_back(*failed->route.prefill);
    avoid_.push_back(failed->route.decode);
  } else {
    avoid_.push_back(worker);
  }
  if (!is_busy && !absl::IsAborted(status)) actions.suspect = worker;
  EndCalls(failed, &actions);
  for (Sample& sample : samples_) {
    if (!failed->Has(sample.index()) || sample.over()) continue;
    if (sample.met_end()) sample.End(now - options_.arrival);
  }
  if (is_busy) {
    WaitLonger(*failed, now, &actions);
  } else {
    Begin(GoalsAfter(*failed), now, &actions);
  }
  return actions;
}

void Generation::WaitLonger(const Attempt& busy, absl::Time now,
                            GenerationActions* actions) {
  std::vector<AttemptGoal> goals = GoalsAfter(busy);
  for (AttemptGoal& goal : goals) {
    goal.num_failed = busy.goal.num_failed;
    goal.num_replaced = busy.goal.num_replaced;
  }
  Begin(goals, now, actions);
  if (busy.wait_end == absl::InfinitePast()) return;  // The first one.
  for (const uint32_t number : actions->find_route) {
    attempts_[number].wait_end = busy.wait_end;
    attempts_[number].next_pause = busy.next_pause;
  }
}

std::vector<AttemptGoal> Generation::GoalsAfter(const Attempt& failed) const {
  std::vector<AttemptGoal> goals;
  bool has_tokens = false;
  for (const Sample& sample : samples_) {
    if (!failed.Has(sample.index())) continue;
    has_tokens |= sample.num_tokens() > 0;
    if (sample.over()) continue;
    const bool got_on = sample.num_tokens() > failed.goal.num_resumed;
    goals.push_back({.first_sample = sample.index(),
                     .num_samples = 1,
                     .num_resumed = sample.num_tokens(),
                     .num_failed = got_on ? 1 : failed.goal.num_failed + 1,
                     .num_replaced = failed.goal.num_replaced + 1});
  }
  if (!goals.empty() && !has_tokens) {
    AttemptGoal all = PromptGoalAfter(failed);
    all.num_samples = failed.goal.num_samples;
    return {all};
  }
  if (AwaitsPrompt(failed)) goals.push_back(PromptGoalAfter(failed));
  return goals;
}

AttemptGoal Generation::PromptGoalAfter(const Attempt& failed) const {
  return {.prompt_from = PromptFrom(),
          .num_failed = failed.goal.num_failed + 1,
          .num_replaced = failed.goal.num_replaced + 1};
}

void Generation::Begin(const std::vector<AttemptGoal>& goals, absl::Time now,
                       GenerationActions* actions) {
  const bool too_many =
      std::any_of(goals.begin(), goals.end(), [this](const AttemptGoal& goal) {
        return goal.num_failed > options_.max_retries ||
               goal.num_replaced > kMaxReplacedAttempts;
      });
  if (goals.empty() || too_many) actions->retry_reason = {};
  if (too_many) return Fail(WorkersLost(), now, actions);
  for (const AttemptGoal& goal : goals) {
    Attempt& attempt =
        attempts_.emplace_back(static_cast<uint32_t>(attempts_.size()), goal);
    attempt.worst_route = RouteRank::kUntried;
    attempt.wait_end = now + options_.worker_wait;
    attempt.next_pause =
        std::min(kFirstPause * std::max(goal.num_failed, 1u), kLongestPause);
    actions->find_route.push_back(attempt.number);
  }
  Settle(now, actions);
}

}  // namespace baton
