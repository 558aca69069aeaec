// The threads of a process's ranks in an expert-parallel group.
#ifndef BATON_SERVER_GROUP_LOOP_H_
#define BATON_SERVER_GROUP_LOOP_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "base/clock.h"
#include "base/mpsc_queue.h"
#include "comm/expert_dispatch.h"
#include "comm/kv_transfer_agent.h"
#include "comm/step_vote.h"
#include "engine/llm_engine.h"

namespace baton {

struct GroupLoopOptions {
  StepVoteOptions vote;
  // A prompt that has waited for so long makes the next step an ANY point.
  absl::Duration max_prefill_wait = absl::Milliseconds(20);
  // Of each layer with experts; the tables outlive the loop.
  std::span<const ExpertSlots> expert_slots;
  bool drafts = false;
  // To every other process of the group; may be empty where there is none.
  std::function<void(const VoteMessage&)> send = {};
};

// Steps as the group took them, this process's ranks together.
struct GroupCounters {
  uint64_t prefill_steps = 0;
  uint64_t decode_steps = 0;
  uint64_t empty_rank_steps = 0;   // Of one rank, without a row.
  uint64_t prefill_fallbacks = 0;  // Voted for, and nobody could.
};

// One thread turns the engines of all local ranks, votes for them together and
// launches each step on all of them; each rank's device has a thread of its
// own. Another thread turns the transfer agent. Both block when there is
// nothing to do.
class GroupLoop {
 public:
  // Starts the threads. Borrows all, which must outlive it; `agent` may be
  // null. The engines' on_work must be OnWork of this.
  GroupLoop(const GroupLoopOptions& options, std::vector<LLMEngine*> engines,
            KvTransferAgent* agent, const Clock* clock);
  // Goes on until the engines are idle, then stops. REQUIRES: every request of
  // the group has ended, or is about to.
  ~GroupLoop();
  GroupLoop(const GroupLoop&) = delete;
  GroupLoop& operator=(const GroupLoop&) = delete;

  // Thread-safe.
  void OnWork() { messages_.Wake(); }
  // Of another process. Thread-safe.
  void OnMessage(const VoteMessage& message) { messages_.Push(message); }

 private:
  void TurnEngines();
  void TurnAgent();
  bool CollectAll();
  bool Vote();
  Ballot MakeBallot() const;
  StepBounds BoundsOf(const StepDecision& decision) const;
  bool PlanAll(const StepDecision& decision);
  void Run(const StepDecision& decision, bool is_planned);
  bool HasRoomForStep() const;
  bool idle() const;
  void Wait();

  const GroupLoopOptions options_;
  const std::vector<LLMEngine*> engines_;
  KvTransferAgent* const agent_;
  const Clock* const clock_;

  MpscQueue<VoteMessage> messages_;
  std::atomic<bool> stop_engines_{false};
  std::atomic<bool> stop_agent_{false};

  // The engines' thread.
  StepVote vote_;
  std::vector<VoteMessage> received_;
  bool asleep_ = true;  // The step before was none.
  absl::Time newest_prefill_ = absl::InfinitePast();
  GroupCounters counters_;

  std::thread engines_thread_;
  std::thread agent_thread_;
};

}  // namespace baton

#endif  // BATON_SERVER_GROUP_LOOP_H_
