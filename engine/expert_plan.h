// What a group's load balancing plans from, and what comes of it.
#ifndef BATON_ENGINE_EXPERT_PLAN_H_
#define BATON_ENGINE_EXPERT_PLAN_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "engine/eplb_planner.h"
#include "engine/expert_placement.h"

namespace baton {

struct ExpertPlanJob {
  ExpertPlacement present;
  // Of each layer, the whole group's: [rows, num_experts], oldest first.
  std::vector<std::vector<uint32_t>> loads;
};

// One layer that gets new experts.
struct ExpertLayerMove {
  uint32_t layer = 0;
  std::vector<uint32_t> experts;  // By slot.
  uint32_t moved_slots = 0;
};

struct ExpertPlan {
  // The layer that is worst off first.
  std::vector<ExpertLayerMove> moves = {};
  // Of each layer: the fullest rank's load over the mean rank's, as it is and
  // as it would be. The same where the layer stays.
  std::vector<double> present_ratios = {};
  std::vector<double> planned_ratios = {};
  // Layers that nobody looked at, for want of time.
  uint32_t unplanned_layers = 0;

  uint32_t moved_slots() const;
};

// Pure, but for where `time_left` cuts: layers come in order of need, so those
// that need it least go without. REQUIRES: loads of each of the layers.
ExpertPlan PlanExperts(const ExpertPlanJob& job, const EplbOptions& options,
                       const std::function<bool()>& time_left);

}  // namespace baton

#endif  // BATON_ENGINE_EXPERT_PLAN_H_
