// The threads of a process's ranks in an expert-parallel group.
#ifndef BATON_SERVER_GROUP_LOOP_H_
#define BATON_SERVER_GROUP_LOOP_H_

#include <atomic>
#include <functional>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "base/clock.h"
#include "base/mpsc_queue.h"
#include "comm/kv_transfer_agent.h"
#include "comm/step_vote.h"
#include "engine/group_stepper.h"
#include "engine/llm_engine.h"
#include "server/transfer_thread.h"

namespace baton {

// One thread turns the engines of all local ranks, votes for them together and
// launches each step on all of them; each rank's device has a thread of its
// own. Another thread turns the transfer agent. Both block when there is
// nothing to do.
class GroupLoop {
 public:
  // Starts the threads. Borrows all, which must outlive it; `agent` may be
  // null. The engines' on_work must be OnWork of this. `status`: of the group's
  // exchange; once that has ended no rank can do anything, and all of them live
  // here: the process dies, to be started again.
  GroupLoop(const GroupStepperOptions& options, std::vector<LLMEngine*> engines,
            KvTransferAgent* agent, const Clock* clock,
            std::function<absl::Status()> status);
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
  bool idle() const;
  void Wait();

  const std::vector<LLMEngine*> engines_;
  const std::function<absl::Status()> status_;

  MpscQueue<VoteMessage> messages_;
  std::atomic<bool> stop_engines_{false};

  // The engines' thread.
  GroupStepper stepper_;
  std::vector<VoteMessage> received_;

  TransferThread transfer_;  // Stops behind the engines.
  std::thread engines_thread_;
};

}  // namespace baton

#endif  // BATON_SERVER_GROUP_LOOP_H_
