// One simulated group: processes with ranks, a network, clients, faults.
#ifndef BATON_TESTS_SIMULATION_GROUP_GROUP_WORLD_H_
#define BATON_TESTS_SIMULATION_GROUP_GROUP_WORLD_H_

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <random>
#include <vector>

#include "comm/step_vote.h"
#include "engine/group_stepper.h"
#include "tests/fakes/simulated_clock.h"
#include "tests/simulation/group/group_client.h"
#include "tests/simulation/group/group_result.h"
#include "tests/simulation/group/simulated_rank.h"

namespace baton {

struct GroupWorldOptions {
  uint64_t seed = 1;
  uint32_t num_processes = 2;
  uint32_t ranks_per_process = 1;
  SimulatedRankOptions rank = {};
  uint32_t all_interval = 70;
  uint32_t any_interval = 100;
  // The world's clock goes a microsecond an act.
  absl::Duration max_prefill_wait = absl::Milliseconds(20);
  GroupRequestOptions requests = {};
  uint32_t max_clients = 8;  // At a time.
  // Of 65536 acts of the world outside: a process is killed, or stopped.
  uint32_t fault_weight = 0;
  uint32_t abort_weight = 256;  // Of as many: a request is aborted.
  // A rank wants a prefill while its queue is not empty, whether or not the
  // queue's head would fit.
  bool wants_by_estimate = false;
  // False: what the group votes for is not asked again.
  bool has_second_round = true;
  // False: a request that ended while it waited is looked at in prefill steps
  // alone, and a rank whose oldest waiting one is such wants no prefill.
  bool sweeps_when_decoding = true;
  // A livelock ends the run; else the process.
  bool may_livelock = false;
};

// One thread; random, and the same for the same options. After each event it
// checks that
// - all processes take the same steps in the same order: type, bounds, drafts
//   and placement of each (epoch, step); plans keep within them, and each rank
//   has the tables of that placement;
// - a wish for a prefill is granted, or found vain, within any_interval steps;
// - while there are requests there are steps, and tokens or ends come of them;
// - who is named as missing is stopped or dead;
// and at the end that each request got its tokens, each once, in order, that no
// block is out and that the group sleeps.
class GroupWorld {
 public:
  explicit GroupWorld(const GroupWorldOptions& options);
  ~GroupWorld();

  // Until so many rank steps are launched, then until all requests have ended.
  void Run(uint64_t rank_steps);

  const GroupResult& result() const { return result_; }

 private:
  struct Process;
  struct InFlightMessage {
    VoteMessage message;
    uint32_t hold = 0;  // Turns of its receiver until it arrives.
  };
  struct TakenStep {
    EpochId epoch = {};
    StepDecision decision = {};
    uint32_t num_launched = 0;  // Ranks.
  };

  void Act();
  void ActOutside();
  void Drain();
  bool IsQuiet() const;

  void Turn(uint32_t p);
  void Deliver(Process* process);
  void RunDevices(Process* process);
  void Join(uint32_t p);
  void Leave(Process* process);
  void Send(uint32_t from, const VoteMessage& message);
  void AmendBallot(Process* process, Ballot* ballot) const;
  bool HeadIsOver(const Process& process) const;
  void OnStep(uint32_t p, const StepDecision& decision);
  void OnNewStep(const StepDecision& decision, bool fell_back);

  void ServeClients();
  void Submit(GroupClient* client);
  void AbortOne();
  void Sweep(Process* process);
  void DoFault();
  void Kill(uint32_t p);
  void Return(Process* process);
  void LookForStandstill();
  bool IsLate(const Process& process) const;
  void Fence();
  void OnLivelock(const char* what);

  uint64_t Draw(uint64_t below) { return random_() % below; }
  uint32_t num_ranks() const {
    return options_.num_processes * options_.ranks_per_process;
  }

  const GroupWorldOptions options_;
  std::mt19937_64 random_;
  SimulatedClock clock_;
  std::vector<GroupRequest> requests_;
  std::vector<std::unique_ptr<Process>> processes_;
  std::vector<std::unique_ptr<GroupClient>> clients_;

  EpochId epoch_{1};
  bool ending_ = false;      // The epoch: some processes may not know yet.
  uint32_t num_joined_ = 0;  // Processes; all of them: it has started.
  std::array<TakenStep, 8> taken_;
  uint64_t newest_version_ = 0;
  uint32_t steps_of_wish_ = 0;  // Decode steps while a prefill is wanted.

  uint64_t acts_ = 0;
  uint64_t newest_step_act_ = 0;
  uint64_t progress_ = 0;  // Tokens and ends that clients were told.
  uint64_t seen_progress_ = 0;
  uint32_t steps_without_progress_ = 0;
  uint64_t next_client_ = 0;
  uint64_t quiet_until_ = 0;
  bool draining_ = false;
  GroupResult result_;
};

}  // namespace baton

#endif  // BATON_TESTS_SIMULATION_GROUP_GROUP_WORLD_H_
