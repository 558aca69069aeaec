#include "engine/group_stepper.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace baton {
namespace {

StepBounds BoundsOf(const StepDecision& decision) {
  const bool prefills = decision.type == VotedStep::kPrefill;
  return {.type = prefills ? StepType::kPrefill : StepType::kDecode,
          .max_rows = prefills ? decision.prefill_tokens : decision.decode_rows,
          .max_drafts = decision.num_drafts};
}

}  // namespace

GroupStepper::GroupStepper(const GroupStepperOptions& options,
                           std::vector<LLMEngine*> engines, const Clock* clock)
    : options_(options),
      engines_(std::move(engines)),
      clock_(clock),
      vote_(options.vote) {}

bool GroupStepper::Turn() {
  bool busy = false;
  // Not between a plan and its launch: what the plan names must not end.
  if (vote_.phase() != VotePhase::kConfirming) {
    for (LLMEngine* engine : engines_) busy |= engine->Collect();
  }
  return Vote() || busy;
}

// One move of the vote; false if it waits.
bool GroupStepper::Vote() {
  MeasureWait();
  switch (vote_.phase()) {
    case VotePhase::kPosting:
      return Post();
    case VotePhase::kCollecting:
      return Decide();
    case VotePhase::kConfirming:
      return Settle();
  }
  return false;
}

bool GroupStepper::Post() {
  const Ballot ballot = MakeBallot();
  const bool says_nothing = ballot.idle() && ballot.draining == told_draining_;
  if (says_nothing && asleep()) return false;
  told_draining_ = ballot.draining;
  const VoteMessage message = vote_.Post(ballot);
  if (options_.send) options_.send(message);
  asked_ = clock_->Now();
  return true;
}

bool GroupStepper::Decide() {
  if (!HasRoomForStep()) return false;
  const std::optional<StepDecision> decision = vote_.Decide();
  if (!decision.has_value()) return false;
  if (decision->is_final) {
    Run(*decision, /*is_planned=*/false);
    return true;
  }
  const VoteMessage message = vote_.Confirm(PlanAll(*decision));
  if (options_.send) options_.send(message);
  asked_ = clock_->Now();
  return true;
}

bool GroupStepper::Settle() {
  const std::optional<StepDecision> decision = vote_.Settle();
  if (!decision.has_value()) return false;
  const bool is_planned = decision->type == VotedStep::kPrefill;
  stats_.fell_back = !is_planned;
  counters_.prefill_fallbacks += is_planned ? 0 : 1;
  Run(*decision, is_planned);
  return true;
}

Ballot GroupStepper::MakeBallot() const {
  const absl::Time now = clock_->Now();
  Ballot all;
  for (const LLMEngine* engine : engines_) {
    const StepWish wish = engine->Wish();
    const bool wants_prefill = wish.prefill_tokens > 0;
    const absl::Time since = std::max(wish.prefill_since, newest_prefill_);
    all.Merge({.num_ranks = 1,
               .num_wanting_prefill = wants_prefill ? 1u : 0u,
               .prefill_is_overdue =
                   wants_prefill && now - since > options_.max_prefill_wait,
               .prefill_tokens = wish.prefill_tokens,
               .decode_rows = wish.decode_rows,
               .num_drafts = wish.num_drafts});
  }
  if (options_.amend_ballot) options_.amend_ballot(&all);
  return all;
}

bool GroupStepper::PlanAll(const StepDecision& decision) {
  stats_.empty_ranks = 0;
  for (LLMEngine* engine : engines_) {
    const bool has_rows = engine->PlanStep(BoundsOf(decision));
    stats_.empty_ranks += has_rows ? 0 : 1;
  }
  return stats_.empty_ranks < engines_.size();
}

void GroupStepper::Run(const StepDecision& decision, bool is_planned) {
  const bool is_behind_pause = asleep_;
  asleep_ = decision.type == VotedStep::kNone;
  if (options_.on_step) options_.on_step(decision);
  if (!asleep_) {
    if (!is_planned) PlanAll(decision);
    const GroupStep step = {
        .expert_slots = options_.expert_slots ? options_.expert_slots(decision)
                                              : std::span<const ExpertSlots>(),
        .num_draft_passes =
            options_.drafts ? std::max(decision.num_drafts, 1u) : 0,
        .is_behind_pause = is_behind_pause};
    for (LLMEngine* engine : engines_) engine->LaunchStep(step);
  }
  if (decision.type == VotedStep::kPrefill) newest_prefill_ = clock_->Now();
  Report(decision);
}

// A step that is none is told only for the prefill that it was to be.
void GroupStepper::Report(const StepDecision& decision) {
  const bool is_none = decision.type == VotedStep::kNone;
  if (is_none && !stats_.fell_back) {
    stats_ = {.dropped_messages = stats_.dropped_messages};
    return;
  }
  stats_.type = decision.type;
  stats_.cause = decision.cause;
  if (is_none) stats_.empty_ranks = 0;
  counters_.prefill_steps += decision.type == VotedStep::kPrefill ? 1 : 0;
  counters_.decode_steps += decision.type == VotedStep::kDecode ? 1 : 0;
  counters_.empty_rank_steps += stats_.empty_ranks;
  if (options_.observer) options_.observer(stats_);
  stats_ = {};
}

// From the asking on, once all have answered.
void GroupStepper::MeasureWait() {
  if (!asked_.has_value() || !vote_.is_complete()) return;
  absl::Time idle_since = *asked_;
  for (const LLMEngine* engine : engines_) {
    idle_since = std::max(idle_since, engine->IdleSince());
  }
  const absl::Time now = clock_->Now();
  stats_.vote_wait += now - *asked_;
  stats_.exposed_wait += std::max(absl::ZeroDuration(), now - idle_since);
  asked_.reset();
}

bool GroupStepper::HasRoomForStep() const {
  return std::all_of(engines_.begin(), engines_.end(), [](LLMEngine* engine) {
    return engine->HasRoomForStep();
  });
}

}  // namespace baton
