// What a Generation does for workers that it lost, or can't find.
#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "server/edge/grpc_status.h"
#include "server/edge/stream_budget.h"
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

// The worker is alive, and says why it can't: it drains, or its group has lost
// a rank.
bool IsHandedBack(const absl::Status& status) {
  return IsAnotherModel(status) ||
         (absl::IsUnavailable(status) && ErrorReason(status).has_value());
}

// A worker that shuts down cancels its calls; we did not ask for that.
bool IsRetryable(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsAborted(status) ||
         absl::IsCancelled(status) || IsAnotherModel(status);
}

// What the attempt after one that ended so is to be; absent: there is none.
std::optional<AttemptCause> CauseAfter(const absl::Status& status,
                                       bool has_tokens) {
  if (absl::IsResourceExhausted(status)) {
    // Who has tokens already can't come back later.
    if (has_tokens) return AttemptCause::kHandedBack;
    // Without a delay it is the request, such as one that is too large.
    if (RetryDelay(status).has_value()) return AttemptCause::kRefused;
    return std::nullopt;
  }
  if (!IsRetryable(status)) return std::nullopt;
  return IsHandedBack(status) ? AttemptCause::kHandedBack : AttemptCause::kLost;
}

void AddOnce(WorkerId worker, std::vector<WorkerId>* workers) {
  if (std::find(workers->begin(), workers->end(), worker) == workers->end()) {
    workers->push_back(worker);
  }
}

absl::Status WorkersLost() {
  return WithRetryDelay(
      WithReason(absl::UnavailableError("a worker was lost in every attempt"),
                 "WORKER_LOST"),
      absl::Seconds(1));
}

std::string_view RetryReason(const Route& route, WorkerId lost,
                             const absl::Status& status) {
  if (IsSlowReaderCut(status)) return "slow_reader";
  if (absl::IsAborted(status)) return "kv_lost";
  if (absl::IsResourceExhausted(status)) return "busy";
  if (IsAnotherModel(status)) return "another_model";
  if (IsHandedBack(status)) return "handed_back";
  if (!route.prefill.has_value()) return "unified_lost";
  return lost == route.decode ? "decode_lost" : "prefill_lost";
}

// Whom later attempts avoid.
std::vector<WorkerId> BlamedFor(const Route& route, WorkerId lost,
                                const absl::Status& status) {
  // It is well: we did not read, for a client that did not.
  if (IsSlowReaderCut(status)) return {};
  if (absl::IsAborted(status) && route.prefill.has_value()) {
    // The KV was lost on the way: it may have been either end's fault.
    return {*route.prefill, route.decode};
  }
  return {lost};
}

}  // namespace

RouteNeeds Generation::NeedsOf(uint32_t attempt) const {
  const bool was_refused =
      attempts_[attempt].goal.cause == AttemptCause::kRefused;
  return {.avoid = avoid_,
          .exclude = was_refused ? refusers_ : std::vector<WorkerId>(),
          .worst = attempts_[attempt].worst_route,
          .fingerprint = fingerprint_,
          .context_tokens = static_cast<uint32_t>(plan_.prompt_ids.size()) +
                            plan_.max_tokens};
}

GenerationActions Generation::OnNoRoute(uint32_t number, absl::Status why,
                                        absl::Time now) {
  Attempt& attempt = attempts_[number];
  if (attempt.phase() != AttemptPhase::kRouting) return {};
  if (attempt.goal.cause == AttemptCause::kRefused) return Fail(refusal_, now);
  if (now >= attempt.goal.wait_end) return Fail(std::move(why), now);
  const absl::Duration pause = std::min(
      std::max(attempt.next_pause, kFirstPause), attempt.goal.wait_end - now);
  attempt.next_pause = std::min(2 * pause, kLongestPause);
  return {.pause = {{.attempt = number, .duration = pause}}};
}

GenerationActions Generation::OnPauseEnded(uint32_t number) {
  Attempt& attempt = attempts_[number];
  if (attempt.phase() != AttemptPhase::kRouting) return {};
  attempt.worst_route = std::max(attempt.worst_route, RouteRank::kReady);
  return {.find_route = {number}};
}

GenerationActions Generation::OnRetryRefused(uint32_t number, absl::Status why,
                                             absl::Time now) {
  const Attempt& attempt = attempts_[number];
  if (attempt.phase() != AttemptPhase::kRouting) return {};
  return Fail(
      attempt.goal.cause == AttemptCause::kRefused ? refusal_ : std::move(why),
      now);
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
  AttemptGoal goal = GoalAfter(*attempt, AttemptCause::kLost, now);
  goal.prompt_from = PromptFrom();
  Begin({goal}, now, actions);
}

GenerationActions Generation::OnAttemptFailed(Attempt* failed, WorkerId worker,
                                              const absl::Status& status,
                                              absl::Time now) {
  const std::optional<AttemptCause> cause =
      CauseAfter(status, /*has_tokens=*/num_tokens() > 0);
  if (!cause.has_value()) return Fail(status, now);
  if (cause == AttemptCause::kRefused) {
    if (options_.max_retries == 0) return Fail(status, now);
    AddOnce(worker, &refusers_);
    refusal_ = status;
  }
  GenerationActions actions;
  actions.retry_reason = RetryReason(failed->route, worker, status);
  for (const WorkerId blamed : BlamedFor(failed->route, worker, status)) {
    AddOnce(blamed, &avoid_);
  }
  if (!absl::IsResourceExhausted(status) && !absl::IsAborted(status)) {
    actions.suspect = worker;
  }
  EndCalls(failed, &actions);
  for (Sample& sample : samples_) {
    if (!failed->Has(sample.index()) || sample.over()) continue;
    if (sample.met_end()) sample.End(now - options_.arrival);
  }
  Begin(GoalsAfter(*failed, *cause, now), now, &actions);
  return actions;
}

std::vector<AttemptGoal> Generation::GoalsAfter(const Attempt& failed,
                                                AttemptCause cause,
                                                absl::Time now) const {
  std::vector<AttemptGoal> goals;
  bool has_tokens = false;
  for (const Sample& sample : samples_) {
    if (!failed.Has(sample.index())) continue;
    has_tokens |= sample.num_tokens() > 0;
    if (sample.over()) continue;
    AttemptGoal goal = GoalAfter(failed, cause, now);
    goal.first_sample = sample.index();
    goal.num_samples = 1;
    goal.num_resumed = sample.num_tokens();
    if (sample.num_tokens() > failed.goal.num_resumed) {
      goal.num_failed = cause == AttemptCause::kLost ? 1 : 0;
      goal.wait_end = now + options_.worker_wait;
      goal.first_pause = kFirstPause;
    }
    goals.push_back(goal);
  }
  const bool is_all = !goals.empty() && !has_tokens;
  if (!is_all && !AwaitsPrompt(failed)) return goals;
  AttemptGoal goal = GoalAfter(failed, cause, now);
  goal.prompt_from = PromptFrom();
  if (is_all) {
    goal.first_sample = failed.goal.first_sample;
    goal.num_samples = failed.goal.num_samples;
    goals.clear();
  }
  goals.push_back(goal);
  return goals;
}

AttemptGoal Generation::GoalAfter(const Attempt& failed, AttemptCause cause,
                                  absl::Time now) const {
  AttemptGoal goal = {.cause = cause,
                      .num_failed = failed.goal.num_failed,
                      .num_replaced = failed.goal.num_replaced,
                      .wait_end = failed.goal.wait_end,
                      .first_pause = failed.next_pause};
  if (cause == AttemptCause::kLost) {
    ++goal.num_failed;
    ++goal.num_replaced;
    goal.first_pause = std::min(kFirstPause * goal.num_failed, kLongestPause);
  }
  if (cause == AttemptCause::kLost ||
      failed.goal.cause == AttemptCause::kFirst) {
    goal.wait_end = now + options_.worker_wait;
  }
  goal.first_pause = std::max(goal.first_pause, kFirstPause);
  return goal;
}

void Generation::Begin(const std::vector<AttemptGoal>& goals, absl::Time now,
                       GenerationActions* actions) {
  const bool too_many =
      std::any_of(goals.begin(), goals.end(), [this](const AttemptGoal& goal) {
        return options_.max_retries == 0 ||
               goal.num_failed > options_.max_retries ||
               goal.num_replaced > kMaxReplacedAttempts;
      });
  if (goals.empty() || too_many) actions->retry_reason = {};
  if (too_many) return Fail(WorkersLost(), now, actions);
  for (const AttemptGoal& goal : goals) {
    Attempt& attempt =
        attempts_.emplace_back(static_cast<uint32_t>(attempts_.size()), goal);
    // Who was refused knows no better ones to wait for.
    attempt.worst_route = goal.cause == AttemptCause::kRefused
                              ? RouteRank::kReady
                              : RouteRank::kUntried;
    actions->find_route.push_back(attempt.number);
  }
  Settle(now, actions);
}

}  // namespace baton
