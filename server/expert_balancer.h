// Moves the experts of a process's ranks to where the group's load wants them.
#ifndef BATON_SERVER_EXPERT_BALANCER_H_
#define BATON_SERVER_EXPERT_BALANCER_H_

#include <cstdint>
#include <functional>
#include <set>
#include <span>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/mpsc_queue.h"
#include "comm/expert_dispatch.h"
#include "comm/step_vote.h"
#include "engine/expert_rebalance.h"
#include "engine/rank_load_ratio.h"
#include "server/background_thread.h"
#include "server/balance_metrics.h"

namespace baton {

struct ExpertBalancerOptions {
  // Of which `plan`, mover.load and mover.drop are the balancer's.
  ExpertRebalanceOptions rebalance;
  EplbOptions eplb = {};
  // A plan that takes longer is made of what was found by then.
  absl::Duration max_plan_time = absl::Seconds(5);
  uint64_t expert_bytes = 0;  // Of one expert of one layer.
  // On the background thread, one call at a time; in End, on the caller's. An
  // expert is in memory from a load that is OK until it is dropped.
  std::function<absl::Status(uint32_t layer, uint32_t expert)> load_expert = {};
  std::function<void(uint32_t layer, uint32_t expert)> drop_expert = {};
  // Called on any thread: Turn has something to do.
  std::function<void()> wake = {};
};

// One process's part in one epoch, with the thread that plans and loads.
// Everything is called on the engines' thread; nothing blocks but the
// destructor and End. At its start the local slots' experts of the first
// placement are in memory.
class ExpertBalancer final {
 public:
  // Borrows both; `metrics` may be null.
  ExpertBalancer(const ExpertBalancerOptions& options, const Clock* clock,
                 BalanceMetrics* metrics);
  ~ExpertBalancer();
  ExpertBalancer(const ExpertBalancer&) = delete;
  ExpertBalancer& operator=(const ExpertBalancer&) = delete;

  // Takes what the thread has done; false: nothing.
  bool Turn();
  // Of another process; false: not one of these, or none that may be now.
  bool OnMessage(uint32_t from, std::string_view bytes);
  // As GroupStepperOptions have them.
  void AmendBallot(Ballot* ballot) const {
    ballot->placement_version = rebalance_.placement_version();
  }
  std::span<const ExpertSlots> SlotsOf(const StepDecision& decision);
  // At each step's commit, of each local rank: StepStats::expert_rows.
  void OnStepRows(uint32_t local_rank, std::span<const uint32_t> rows);

  // Behind the last step of the epoch: the first placement's experts are in
  // memory again, and no others, for the next epoch to begin with. Not OK: one
  // could not be loaded; call it again. Nothing else may be called any more.
  absl::Status End();

  const ExpertRebalance& rebalance() const { return rebalance_; }

 private:
  struct Planned {
    ExpertPlan plan;
    absl::Duration time;
  };
  struct Loaded {
    bool ok = false;
  };
  using Done = std::variant<Planned, Loaded>;

  ExpertRebalanceOptions RebalanceOptions();
  void Tell(Done done);
  void On(Planned planned);
  void On(Loaded loaded) { rebalance_.OnLoaded(loaded.ok); }
  void Report();
  // The background thread's.
  Planned Plan(const ExpertPlanJob& job) const;
  bool LoadAll(const std::vector<LayerExpert>& experts);
  void DropAll(const std::vector<LayerExpert>& experts);

  const ExpertBalancerOptions options_;
  const Clock* const clock_;
  BalanceMetrics* const metrics_;
  MpscQueue<Done> done_;

  // The engines' thread.
  std::vector<Done> drained_;
  ExpertRebalance rebalance_;
  RankLoadRatio ratio_;
  BalanceCounts reported_;
  uint64_t reported_version_ = 0;
  uint64_t reported_plan_ = 0;  // The newest that is over.

  // The background thread's, until it has ended.
  std::set<LayerExpert> in_memory_;
  BackgroundThread thread_;
};

}  // namespace baton

#endif  // BATON_SERVER_EXPERT_BALANCER_H_
