// Where experts should be, by the loads of a window of steps (expert-parallel
// load balancing).
//
// Objective, of each layer by itself: sum over steps of the fullest rank's
// load, an expert's load dividing evenly over its replicas. Its ratio is that
// over the sum of the ranks' mean loads; 1 is perfect.
//
// A layer is planned on kNumGroups groups of consecutive steps. How an expert's
// load differs from group to group is partly chance: drawing tokens makes the
// variance of a count its mean. The index of dispersion, the variance found
// over that, says how much. Where chance explains all, one group stands for
// all steps. Elsewhere what it explains is taken out of the differences (as a
// James-Stein estimate does), and the rest enlarged, for steps differ more than
// groups of them. So a plan does not learn noise, keeps apart what is busy
// together, and costs what the loads' real movement asks for.
//
// Owned by who plans: single-threaded, no clock. Deterministic, but for where
// `time_left` cuts.
#ifndef BATON_ENGINE_EPLB_PLANNER_H_
#define BATON_ENGINE_EPLB_PLANNER_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "engine/expert_load_window.h"
#include "engine/expert_placement.h"

namespace baton {

struct EplbOptions {
  // A layer whose ratio is at most this stays as it is.
  double balanced_ratio = 1.005;
  // Nor does one move whose ratio falls by less than this.
  double min_gain = 0.005;
  // A search ends at this ratio.
  double target_ratio = 1.0005;
  // Packing anew moves nearly every slot: it is done only where it lowers the
  // ratio by more than this against mending the present placement.
  double repack_gain = 0.005;
  // Improvements tried by one search, a layer.
  uint32_t max_improvements = 200;
};

// One layer's plan.
struct EplbLayerPlan {
  std::vector<uint32_t> experts;  // By slot.
  // On the groups as planned on: comparable with each other alone, where there
  // are several. PlacementRatio() says how even the steps were.
  double present_ratio = 1;
  double planned_ratio = 1;
  uint32_t num_groups = 1;
  uint32_t moved_slots = 0;  // 0: the layer stays as it is.
};

class EplbPlanner final {
 public:
  static constexpr uint32_t kNumGroups = 16;

  explicit EplbPlanner(const EplbOptions& options) : options_(options) {}

  // `time_left` is asked before each improvement; what was found by then is the
  // plan, which is never worse than the present placement. A layer without
  // load stays. REQUIRES: as many experts in `loads` as in the layout.
  EplbLayerPlan PlanLayer(const ExpertLoads& loads,
                          const ExpertPlacement& present, uint32_t layer,
                          const std::function<bool()>& time_left) const;

 private:
  const EplbOptions options_;
};

// The objective over its ideal, on each row of `loads` as it is.
// REQUIRES: `experts` may be a layer's of `layout`.
double PlacementRatio(const ExpertLayout& layout, const ExpertLoads& loads,
                      const std::vector<uint32_t>& experts);

}  // namespace baton

#endif  // BATON_ENGINE_EPLB_PLANNER_H_
