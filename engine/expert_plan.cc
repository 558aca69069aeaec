#include "engine/expert_plan.h"

#include <algorithm>
#include <numeric>
#include <span>
#include <utility>

#include "base/logging.h"

namespace baton {

uint32_t ExpertPlan::moved_slots() const {
  uint32_t sum = 0;
  for (const ExpertLayerMove& move : moves) sum += move.moved_slots;
  return sum;
}

ExpertPlan PlanExperts(const ExpertPlanJob& job, const EplbOptions& options,
                       const std::function<bool()>& time_left) {
  const ExpertLayout& layout = job.present.layout();
  CHECK_EQ(job.loads.size(), layout.num_layers);
  ExpertPlan plan;
  for (uint32_t layer = 0; layer < layout.num_layers; ++layer) {
    const std::span<const uint32_t> experts = job.present.experts(layer);
    plan.present_ratios.push_back(PlacementRatio(
        layout, ExpertLoads(job.loads[layer], layout.num_experts),
        {experts.begin(), experts.end()}));
  }
  plan.planned_ratios = plan.present_ratios;
  std::vector<uint32_t> order(layout.num_layers);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&plan](uint32_t a, uint32_t b) {
    return plan.present_ratios[a] > plan.present_ratios[b];
  });
  const EplbPlanner planner(options);
  for (const uint32_t layer : order) {
    if (!time_left()) {
      ++plan.unplanned_layers;
      continue;
    }
    const ExpertLoads loads(job.loads[layer], layout.num_experts);
    EplbLayerPlan planned =
        planner.PlanLayer(loads, job.present, layer, time_left);
    if (planned.moved_slots == 0) continue;
    plan.planned_ratios[layer] = PlacementRatio(layout, loads, planned.experts);
    plan.moves.push_back({.layer = layer,
                          .experts = std::move(planned.experts),
                          .moved_slots = planned.moved_slots});
  }
  return plan;
}

}  // namespace baton
