#include "server/group_loop.h"

#include <sys/prctl.h>

#include <algorithm>
#include <utility>

#include "base/logging.h"

namespace baton {
namespace {

// Work and the end wake the threads; this bounds what a lost wake-up costs.
constexpr absl::Duration kIdleWait = absl::Seconds(1);
// The engines look for the end of a step by the clock.
constexpr uint64_t kTimerSlackNanoseconds = 1000;

}  // namespace

GroupLoop::GroupLoop(const GroupLoopOptions& options,
                     std::vector<LLMEngine*> engines, KvTransferAgent* agent,
                     const Clock* clock)
    : options_(options),
      engines_(std::move(engines)),
      agent_(agent),
      clock_(clock),
      vote_(options.vote),
      engines_thread_([this] { TurnEngines(); }) {
  if (agent_ != nullptr) agent_thread_ = std::thread([this] { TurnAgent(); });
}

GroupLoop::~GroupLoop() {
  stop_engines_.store(true);
  messages_.Wake();
  engines_thread_.join();
  if (agent_ == nullptr) return;
  stop_agent_.store(true);
  agent_->Wake();
  agent_thread_.join();
}

void GroupLoop::TurnEngines() {
  prctl(PR_SET_TIMERSLACK, kTimerSlackNanoseconds);
  while (!stop_engines_.load() || !idle()) {
    bool busy = CollectAll();
    busy |= Vote();
    if (!busy) Wait();
  }
}

bool GroupLoop::CollectAll() {
  messages_.Drain(&received_);
  for (const VoteMessage& message : received_) vote_.OnMessage(message);
  bool busy = !received_.empty();
  for (LLMEngine* engine : engines_) busy |= engine->Collect();
  return busy;
}

// One move of the vote; false if it waits.
bool GroupLoop::Vote() {
  switch (vote_.phase()) {
    case VotePhase::kPosting: {
      const Ballot ballot = MakeBallot();
      if (asleep_ && ballot.idle() && !vote_.is_called()) return false;
      const VoteMessage message = vote_.Post(ballot);
      if (options_.send) options_.send(message);
      return true;
    }
    case VotePhase::kCollecting: {
      if (!HasRoomForStep()) return false;
      const std::optional<StepDecision> decision = vote_.Decide();
      if (!decision.has_value()) return false;
      if (decision->is_final) {
        Run(*decision, /*is_planned=*/false);
        return true;
      }
      const VoteMessage message = vote_.Confirm(PlanAll(*decision));
      if (options_.send) options_.send(message);
      return true;
    }
    case VotePhase::kConfirming: {
      const std::optional<StepDecision> decision = vote_.Settle();
      if (!decision.has_value()) return false;
      const bool is_planned = decision->type == VotedStep::kPrefill;
      counters_.prefill_fallbacks += is_planned ? 0 : 1;
      Run(*decision, is_planned);
      return true;
    }
  }
  return false;
}

Ballot GroupLoop::MakeBallot() const {
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
  return all;
}

StepBounds GroupLoop::BoundsOf(const StepDecision& decision) const {
  const bool prefills = decision.type == VotedStep::kPrefill;
  return {.type = prefills ? StepType::kPrefill : StepType::kDecode,
          .max_rows = prefills ? decision.prefill_tokens : decision.decode_rows,
          .max_drafts = decision.num_drafts};
}

bool GroupLoop::PlanAll(const StepDecision& decision) {
  bool any = false;
  for (LLMEngine* engine : engines_) {
    const bool has_rows = engine->PlanStep(BoundsOf(decision));
    counters_.empty_rank_steps += has_rows ? 0 : 1;
    any |= has_rows;
  }
  return any;
}

void GroupLoop::Run(const StepDecision& decision, bool is_planned) {
  asleep_ = decision.type == VotedStep::kNone;
  if (asleep_) return;
  if (!is_planned) PlanAll(decision);
  const GroupStep step = {
      .expert_slots = options_.expert_slots,
      .num_draft_passes =
          options_.drafts ? std::max(decision.num_drafts, 1u) : 0};
  for (LLMEngine* engine : engines_) engine->LaunchStep(step);
  if (decision.type == VotedStep::kPrefill) {
    newest_prefill_ = clock_->Now();
    ++counters_.prefill_steps;
  } else {
    ++counters_.decode_steps;
  }
}

bool GroupLoop::HasRoomForStep() const {
  return std::all_of(engines_.begin(), engines_.end(), [](LLMEngine* engine) {
    return engine->HasRoomForStep();
  });
}

bool GroupLoop::idle() const {
  return std::all_of(engines_.begin(), engines_.end(),
                     [](const LLMEngine* engine) { return engine->idle(); });
}

void GroupLoop::Wait() {
  absl::Duration wait = kIdleWait;
  for (const LLMEngine* engine : engines_) wait = engine->TimeToNextTurn(wait);
  messages_.WaitForItem(wait);
}

void GroupLoop::TurnAgent() {
  while (!stop_agent_.load()) {
    if (!agent_->Poll()) agent_->Wait(kIdleWait);
  }
}

}  // namespace baton
