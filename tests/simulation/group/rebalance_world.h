// A simulated group that moves its experts while it takes steps: the real vote
// and the real rebalancing, over channels with random delays.
#ifndef BATON_TESTS_SIMULATION_GROUP_REBALANCE_WORLD_H_
#define BATON_TESTS_SIMULATION_GROUP_REBALANCE_WORLD_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "comm/expert_dispatch.h"
#include "comm/step_vote.h"
#include "engine/expert_mover.h"
#include "engine/expert_placement.h"
#include "engine/expert_plan.h"
#include "engine/expert_rebalance.h"

namespace baton {

struct RebalanceWorldOptions {
  uint64_t seed = 1;
  uint32_t num_processes = 2;
  uint32_t ranks_per_process = 1;
  ExpertLayout layout;
  uint32_t interval = 40;
  uint32_t window_steps = 32;
  uint32_t max_layers_in_flight = 2;
  bool separate_channels = false;  // For votes.
  uint32_t failures = 0;           // Of 64 loads.
  uint32_t epoch_ends = 0;         // Of 65536 acts.
};

struct RebalanceWorldResult {
  uint64_t steps = 0;
  uint64_t epochs = 0;
  uint64_t switches = 0;
  uint64_t abandoned = 0;
  uint64_t cancelled = 0;
  // The fullest rank's load beyond the mean, over that.
  double excess = 0;
  double first_excess = 0;

  RebalanceWorldResult& operator+=(const RebalanceWorldResult& other) {
    epochs += other.epochs;
    switches += other.switches;
    abandoned += other.abandoned;
    cancelled += other.cancelled;
    excess += other.excess;
    first_excess += other.first_excess;
    return *this;
  }
};

// One thread; random, and the same for the same options. Dies if
// - processes have different tables in a step, or a step's tables change;
// - an expert that a running step needs is not there, or is dropped;
// - a process holds more than its slots' experts and one batch.
class RebalanceWorld {
 public:
  explicit RebalanceWorld(const RebalanceWorldOptions& options);
  void Run(uint64_t steps);
  // Nothing fails any more, and loads don't change: what was planned is done.
  void Settle();
  // The fullest rank's load over the mean rank's.
  double Ratio(const ExpertPlacement& placement) const;
  double first_ratio() const { return Ratio(ExpertPlacement(options_.layout)); }
  double ratio() const;
  // Of all epochs. Once, at the end.
  const RebalanceWorldResult& Finish();

 private:
  struct Job {
    bool loads = false;
    std::vector<LayerExpert> experts;
  };
  struct RunningStep {
    uint64_t step = 0;
    std::span<const ExpertSlots> slots;
  };
  struct Process {
    uint32_t number = 0;
    std::unique_ptr<StepVote> vote;
    std::unique_ptr<ExpertRebalance> rebalance;
    std::deque<Job> jobs;  // Of the background thread.
    std::vector<ExpertPlanJob> plans;
    std::set<LayerExpert> resident;
    std::vector<std::deque<RunningStep>> running;  // Of each rank.
    uint64_t slowness = 1;                         // Of the background thread.
    uint64_t launched = 0;
    uint64_t failures = 0;
  };
  struct TakenStep {
    uint64_t version = 0;
    std::vector<std::vector<uint32_t>> experts;  // By layer.
    uint32_t num_launched = 0;                   // Processes.
  };
  struct Message {
    bool is_vote = false;
    std::string bytes;
    uint64_t not_before = 0;  // Acts.
  };
  using Lane = std::pair<uint32_t, bool>;  // Sender; votes apart.

  void StartEpoch();
  ExpertRebalanceOptions RebalanceOptions(EpochId epoch, uint32_t p);
  void Count();
  void Act();
  void Send(uint32_t from, uint32_t to, bool is_vote, const std::string& bytes);
  void Deliver(Process* process);
  void TurnVote(Process* process);
  void Launch(Process* process, uint64_t version);

  // A step's collectives end when every rank is in them.
  void RunDevice(Process* process, uint32_t rank);
  void Background(Process* process);
  std::set<LayerExpert> Local(const Process& process) const;

  // The tables of a step are what all processes had, and its experts are here.
  void CheckResident(const Process& process, std::span<const ExpertSlots> slots,
                     const TakenStep& taken) const;
  void CheckUnused(const Process& process,
                   const std::vector<LayerExpert>& dropped) const;

  // What its slots have, and at most one batch.
  void CheckBound(const Process& process) const;

  // Whatever is busy moves on now and then.
  uint32_t RowsOf(const ExpertPlacement& placement, uint32_t layer,
                  uint32_t slot) const;
  std::vector<uint32_t> Rows(std::span<const ExpertSlots> slots, uint32_t rank);
  uint64_t Draw(uint64_t below) { return random_() % below; }

  const RebalanceWorldOptions options_;
  std::mt19937_64 random_;
  std::vector<Process> processes_;
  std::vector<std::map<Lane, std::deque<Message>>> channels_;  // By receiver.
  std::map<uint64_t, TakenStep> taken_;                        // Of the epoch.
  uint64_t acts_ = 0;
  uint64_t shift_ = 0;
  bool settling_ = false;
  RebalanceWorldResult result_;
};

}  // namespace baton

#endif  // BATON_TESTS_SIMULATION_GROUP_REBALANCE_WORLD_H_
