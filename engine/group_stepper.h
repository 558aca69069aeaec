// Turns a process's ranks through the steps that their group agrees on.
#ifndef BATON_ENGINE_GROUP_STEPPER_H_
#define BATON_ENGINE_GROUP_STEPPER_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "absl/time/time.h"
#include "base/clock.h"
#include "comm/expert_dispatch.h"
#include "comm/step_vote.h"
#include "engine/llm_engine.h"

namespace baton {

// One step as the group took it, this process's ranks together.
struct GroupStepStats {
  VotedStep type = VotedStep::kNone;  // kNone: one that fell back to nothing.
  PrefillCause cause = PrefillCause::kNone;
  bool fell_back = false;         // A prefill was voted for, and nobody could.
  uint32_t empty_ranks = 0;       // Without a row.
  uint32_t dropped_messages = 0;  // Late or foreign, since the step before.
  // From our ballot to the last one's arrival, and so for the confirmations.
  absl::Duration vote_wait = {};
  // The part of it in which no local device had anything to do.
  absl::Duration exposed_wait = {};
};

struct GroupStepperOptions {
  StepVoteOptions vote;
  // A prompt that has waited for so long makes the next step an ANY point.
  absl::Duration max_prefill_wait = absl::Milliseconds(20);
  // Of each layer with experts: asked once for each step that is launched, in
  // their order, behind on_step. The tables outlive that step. May be empty.
  std::function<std::span<const ExpertSlots>(const StepDecision&)>
      expert_slots = {};
  bool drafts = false;
  // To every other process of the group; may be empty where there is none.
  std::function<void(const VoteMessage&)> send = {};
  // Adds what engines don't know, before the ballot is posted; may be empty.
  std::function<void(Ballot*)> amend_ballot = {};
  // Told of each step once it is final, before any rank plans or launches it; a
  // prefill is planned before. May be empty.
  std::function<void(const StepDecision&)> on_step = {};
  // Told of each step behind its launch; may be empty.
  std::function<void(const GroupStepStats&)> observer = {};
};

// Their sum.
struct GroupCounters {
  uint64_t prefill_steps = 0;
  uint64_t decode_steps = 0;
  uint64_t empty_rank_steps = 0;   // Of one rank, without a row.
  uint64_t prefill_fallbacks = 0;  // Voted for, and nobody could.
};

// One process's part in one epoch. Never blocks. Owned by the thread that turns
// the engines.
class GroupStepper {
 public:
  // Borrows the engines and the clock.
  GroupStepper(const GroupStepperOptions& options,
               std::vector<LLMEngine*> engines, const Clock* clock);

  // Collects on each engine, then makes a move of the vote, which may launch a
  // step on each. False if nothing happened: wait for a message or for work.
  bool Turn();
  // Of another process; what is late or foreign is dropped.
  void OnMessage(const VoteMessage& message) {
    stats_.dropped_messages += vote_.OnMessage(message) ? 0 : 1;
  }

  const StepVote& vote() const { return vote_; }
  const GroupCounters& counters() const { return counters_; }
  // The group has agreed that nobody has anything to do. Work, or a message
  // from a process that has work, wakes it.
  bool asleep() const { return asleep_ && !vote_.is_called(); }

 private:
  bool Vote();
  bool Post();
  bool Decide();
  bool Settle();
  Ballot MakeBallot() const;
  bool PlanAll(const StepDecision& decision);
  void Run(const StepDecision& decision, bool is_planned);
  bool HasRoomForStep() const;
  void MeasureWait();
  void Report(const StepDecision& decision);

  const GroupStepperOptions options_;
  const std::vector<LLMEngine*> engines_;
  const Clock* const clock_;
  StepVote vote_;
  bool asleep_ = true;  // The step before was none.
  bool told_draining_ = false;
  absl::Time newest_prefill_ = absl::InfinitePast();
  GroupCounters counters_;
  GroupStepStats stats_;  // Of the step that is voted on.
  // Since when we wait for the others' answers; nullopt: they are here.
  std::optional<absl::Time> asked_;
};

}  // namespace baton

#endif  // BATON_ENGINE_GROUP_STEPPER_H_
