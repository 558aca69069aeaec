// Expert-parallel load balancing in a running group: one process's part in one
// epoch.
//
// Every `interval` steps each process tells the leader, process 0, which of
// the experts in its slots got how many rows: one layer a step, so that votes
// never wait behind much. Which step belongs to which layer follows from the
// number of steps, so all loads of a layer are of the same steps. The leader
// merges them, has the layers planned that are out of balance, and tells all
// the moves; ExpertMover makes them. A process that can't load an expert says
// so, and the leader abandons what is left of the plan: every process agrees on
// the version already reached, for none goes further until all are ready.
//
//   process                     leader
//   kLoads, a layer a step ───► merges; has it planned
//                          ◄─── kMove, each layer; batches of a few
//   loads, votes, switches
//   kFailed ──────────────────► abandons the rest
//                          ◄─── kAbandon
//
// A plan is made only where all have said, with their loads, that the one
// before it is over for them.
#ifndef BATON_ENGINE_EXPERT_REBALANCE_H_
#define BATON_ENGINE_EXPERT_REBALANCE_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/expert_dispatch.h"
#include "comm/step_ids.h"
#include "engine/expert_load_collector.h"
#include "engine/expert_load_window.h"
#include "engine/expert_mover.h"
#include "engine/expert_plan.h"
#include "engine/rebalance_message.h"

namespace baton {

struct ExpertRebalanceOptions {
  EpochId epoch = {};
  uint32_t num_processes = 1;
  uint32_t process = 0;  // Of these, this one; 0 leads.
  ExpertMoverOptions mover;
  // All three are the same on all processes.
  // Steps between two plans, the first after a quarter; at least the layers'
  // number and kLeastPause. 0: off.
  uint32_t interval = 10000;
  uint32_t window_steps = 1000;
  // Layers of a batch.
  uint32_t max_layers_in_flight = 4;
  // To another process.
  std::function<void(uint32_t process, std::string message)> send = {};
  // The leader's; OnPlanned answers. One call at a time is open.
  std::function<void(ExpertPlanJob)> plan = {};
};

struct ExpertRebalanceCounters {
  uint64_t rounds = 0;          // The leader's, as are the next four.
  uint64_t skipped_rounds = 0;  // The plan before was not over.
  uint64_t balanced_plans = 0;  // Nothing was to be moved.
  uint64_t plans = 0;           // With a move.
  uint64_t abandoned_plans = 0;
  uint64_t dropped_messages = 0;
};

// Pure. Owned by the engines' thread. Outlives every step of its epoch; no step
// of an epoch before is in flight when it starts.
class ExpertRebalance final {
 public:
  // Steps without loads to tell between two rounds.
  static constexpr uint32_t kLeastPause = 16;

  explicit ExpertRebalance(const ExpertRebalanceOptions& options);

  // The group launches a step now: its tables, which live until it is done on
  // each local rank. `version`: as decided.
  std::span<const ExpertSlots> OnStep(uint64_t version);
  // A local rank's oldest step is done, with so many rows in each of its slots:
  // [layers, slots_per_rank], or empty if nobody counted.
  void OnStepRows(uint32_t local_rank, std::span<const uint32_t> rows);
  // False, and counted: garbage, of another epoch, or not to be said by `from`.
  bool OnMessage(uint32_t from, std::string_view bytes);
  void OnPlanned(ExpertPlan plan);
  void OnLoaded(bool ok);

  // For the ballot.
  uint64_t placement_version() const { return mover_.ready_version(); }
  const ExpertMover& mover() const { return mover_; }
  const ExpertRebalanceCounters& counters() const { return counters_; }

 private:
  bool leads() const { return options_.process == 0; }
  void CountRows(const ExpertPlacement& placement, uint32_t local_rank,
                 std::span<const uint32_t> rows);
  void OnStepDone();
  void MaybeTellLoads();
  void TellLeader(const RebalanceMessage& message);
  void TellAll(const RebalanceMessage& message);
  bool Handle(uint32_t from, const RebalanceMessage& message);
  bool CollectLoads(uint32_t from, const RebalanceMessage& message);
  bool AbandonPlan(const RebalanceMessage& failed);

  const ExpertRebalanceOptions options_;
  const uint32_t interval_;
  ExpertMover mover_;
  std::optional<ExpertLoadWindow> window_;  // None: off.
  uint64_t num_launched_ = 0;
  uint64_t num_done_ = 0;             // On all local ranks.
  std::vector<uint64_t> ranks_done_;  // On each.
  std::deque<const ExpertTables*> in_flight_;
  // The leader's.
  ExpertLoadCollector collector_;
  bool planning_ = false;
  uint64_t abandoned_plan_ = 0;
  ExpertRebalanceCounters counters_;
};

// Steps that share a row of the window, so that one layer's rows fit a message.
uint32_t StepsPerLoadRow(uint32_t num_experts, uint32_t window_steps);

}  // namespace baton

#endif  // BATON_ENGINE_EXPERT_REBALANCE_H_
