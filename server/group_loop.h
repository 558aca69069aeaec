// The threads of a process's ranks in an expert-parallel group.
#ifndef BATON_SERVER_GROUP_LOOP_H_
#define BATON_SERVER_GROUP_LOOP_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "comm/epoch_expert_dispatch.h"
#include "comm/kv_transfer_agent.h"
#include "comm/step_vote.h"
#include "engine/group_stepper.h"
#include "engine/llm_engine.h"
#include "server/balance_metrics.h"
#include "server/expert_balancer.h"
#include "server/group_membership.h"
#include "server/group_metrics.h"
#include "server/transfer_thread.h"

namespace baton {

struct GroupLoopOptions {
  // Its epoch, processes and functions are filled in.
  GroupStepperOptions stepper;
  // Likewise.
  ExpertBalancerOptions balancer;
  // Who keeps the others waiting for so long ends the epoch.
  absl::Duration watchdog = absl::Seconds(5);
  // Told, on the engines' thread, when requests can be served from now on, and
  // when not. May be empty.
  std::function<void(bool)> on_ready = {};
  // The leader refused this process, which can serve nothing any more;
  // refusal() says why. May be empty.
  std::function<void()> on_refused = {};
  // Told, on the engines' thread, when StartLeaving is through. May be empty.
  std::function<void()> on_left = {};
  // Borrowed; may be null.
  GroupMetrics* metrics = nullptr;
  BalanceMetrics* balance_metrics = nullptr;
};

// One thread turns the engines of all local ranks: in an epoch of the group it
// votes for them together and launches each step on all of them; outside, it
// hands every request back as UNAVAILABLE and waits for the group to form
// again. Each rank's device has a thread of its own, and so has the transfer
// agent. All block when there is nothing to do.
class GroupLoop {
 public:
  // Of each local rank; borrowed, as is all that the loop is given.
  struct Rank {
    LLMEngine* engine = nullptr;  // Its on_work wakes the membership.
    EpochExpertDispatch* dispatch = nullptr;
  };

  // `agent` may be null.
  GroupLoop(const GroupLoopOptions& options, GroupMembership* membership,
            std::vector<Rank> ranks, KvTransferAgent* agent,
            const Clock* clock);
  // LeaveGroup at once, if that was not called.
  ~GroupLoop();
  GroupLoop(const GroupLoop&) = delete;
  GroupLoop& operator=(const GroupLoop&) = delete;

  // Once: the engines turn from now on, and call OnStepRows.
  void Start();
  // Until the group has formed, or again if it has ended. FAILED_PRECONDITION:
  // the leader refused this process. Thread-safe.
  absl::Status AwaitEpoch() ABSL_LOCKS_EXCLUDED(mutex_);
  // The leader's. OK: none. Thread-safe.
  absl::Status refusal() ABSL_LOCKS_EXCLUDED(mutex_);
  // The thread goes on until the engines are idle, and, while the others need
  // this process's experts, until they leave as well or `deadline`; then it
  // ends. Again, with an earlier deadline, to hurry it. Thread-safe.
  // REQUIRES: every request of this process has ended, or is about to.
  void StartLeaving(absl::Time deadline) ABSL_LOCKS_EXCLUDED(mutex_);
  // The same, and waits for it.
  void LeaveGroup(absl::Time deadline);

  // Of each step of a local rank, as of StepStats. The engines' thread.
  void OnStepRows(uint32_t local_rank, std::span<const uint32_t> rows);

 private:
  // The vote that we wait for, and since when.
  struct Awaited {
    StepId step;
    VotePhase phase = VotePhase::kPosting;
    absl::Time since;
  };

  void Run();
  bool MayStop();
  absl::Time stop_by() ABSL_LOCKS_EXCLUDED(mutex_);
  void TakeEvents();
  void OnEvent(const EpochStarted& started);
  void OnEvent(const EpochEnded& ended);
  void OnEvent(const GroupRefusal& refusal);
  GroupStepperOptions StepperOptions();
  ExpertBalancerOptions BalancerOptions();
  uint32_t first_rank() const {
    return static_cast<uint32_t>(ranks_.front().dispatch->rank());
  }
  uint32_t num_processes() const {
    return static_cast<uint32_t>(group_.members.size());
  }
  uint32_t process() const {
    return first_rank() / static_cast<uint32_t>(ranks_.size());
  }
  // True if anything happened, as of TurnOutside.
  bool TurnInEpoch();
  void ReceiveMessages();
  void CheckTransport();
  void CheckWatchdog();
  // These ranks kept us waiting for too long.
  void EndForWaiting(std::vector<uint32_t> ranks, const std::string& reason);
  std::vector<uint32_t> RanksOfMissing() const;
  void DumpSteps() const;
  void SetFormed(bool formed) ABSL_LOCKS_EXCLUDED(mutex_);
  // Takes no more steps; requests are handed back with the reason.
  void StopSteps(std::string reason);
  bool TurnOutside();
  void JoinAgain();
  absl::Status Rejoin();
  void Wait();
  std::vector<LLMEngine*> engines() const;
  bool is_settled() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return formed_ || !refusal_.ok();
  }

  const GroupLoopOptions options_;
  const std::vector<Rank> ranks_;
  const Clock* const clock_;
  GroupMembership* const membership_;

  absl::Mutex mutex_;
  bool formed_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status refusal_ ABSL_GUARDED_BY(mutex_);
  absl::Time stop_by_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  std::atomic<bool> stop_{false};

  // All below: the engines' thread.
  std::vector<MembershipEvent> events_;
  std::vector<ChannelMessage> received_;
  GroupEpoch group_;                     // The newest.
  std::optional<GroupStepper> stepper_;  // None: no steps are taken.
  // From an epoch's start until its last step is done.
  std::unique_ptr<ExpertBalancer> balancer_;
  std::optional<Awaited> awaited_;
  bool all_drain_ = false;  // Every process wants to leave.
  // Why no steps are taken.
  std::string outside_reason_ = "the worker's group has not formed yet";
  // An epoch without steps must have been ended by then.
  absl::Time end_epoch_at_ = absl::InfiniteFuture();
  absl::Time join_at_ = absl::InfiniteFuture();  // Of an epoch that has ended.

  TransferThread transfer_;  // Stops behind the engines.
  std::thread engines_thread_;
};

}  // namespace baton

#endif  // BATON_SERVER_GROUP_LOOP_H_
