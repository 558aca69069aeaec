#include "engine/eplb_planner.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <utility>

#include "base/logging.h"
#include "engine/eplb_loads.h"
#include "engine/eplb_search.h"

namespace baton {
namespace {

constexpr int kGroups = EplbPlanner::kNumGroups;
using GroupedLoads = std::vector<GroupLoad<kGroups>>;

// Below this index of dispersion groups differ by little more than chance, and
// their sum plans better.
constexpr double kChance = 1.5;

// Consecutive rows, summed, by expert. With fewer rows than groups the rows
// repeat; what only scales the objective changes no plan.
GroupedLoads GroupRows(const ExpertLoads& loads) {
  const uint32_t num_experts = loads.num_experts();
  GroupedLoads grouped(num_experts);
  std::vector<uint32_t> sum(num_experts);
  const uint32_t rows = loads.num_rows();
  for (uint32_t g = 0; g < kGroups; ++g) {
    const uint32_t begin = uint64_t{g} * rows / kGroups;
    const uint32_t end =
        std::max<uint32_t>(begin + 1, uint64_t{g + 1} * rows / kGroups);
    std::fill(sum.begin(), sum.end(), 0);
    for (uint32_t r = begin; r < end; ++r) {
      const std::span<const uint32_t> row = loads.row(r);
      for (uint32_t e = 0; e < num_experts; ++e) sum[e] += row[e];
    }
    for (uint32_t e = 0; e < num_experts; ++e) grouped[e][g] = sum[e];
  }
  return grouped;
}

std::vector<GroupLoad<1>> SumGroups(const GroupedLoads& grouped) {
  std::vector<GroupLoad<1>> sums(grouped.size());
  for (size_t e = 0; e < grouped.size(); ++e) {
    for (const float load : grouped[e]) sums[e][0] += load;
  }
  return sums;
}

// Takes out of each expert's differences from group to group what chance
// explains; false if that is all. Empty groups (idle steps) stay empty.
bool Denoise(GroupedLoads* grouped) {
  std::array<double, kGroups> group_sum = {};
  for (const auto& load : *grouped) {
    for (int g = 0; g < kGroups; ++g) group_sum[g] += load[g];
  }
  double total = 0;
  int num_groups = 0;
  for (const double sum : group_sum) {
    total += sum;
    num_groups += sum > 0 ? 1 : 0;
  }
  const std::vector<GroupLoad<1>> sums = SumGroups(*grouped);
  double squares = 0;  // Chi-square.
  int num_experts = 0;
  for (size_t e = 0; e < grouped->size(); ++e) {
    if (sums[e][0] <= 0) continue;
    ++num_experts;
    for (int g = 0; g < kGroups; ++g) {
      const double expected = sums[e][0] * group_sum[g] / total;
      const double d = (*grouped)[e][g] - expected;
      if (expected > 0) squares += d * d / expected;
    }
  }
  if (num_experts < 2 || num_groups < 2) return false;
  const double dispersion =
      squares / (1.0 * (num_experts - 1) * (num_groups - 1));
  if (dispersion < kChance) return false;
  const double keep = 1 - 1 / dispersion;
  for (size_t e = 0; e < grouped->size(); ++e) {
    for (int g = 0; g < kGroups; ++g) {
      const double expected = sums[e][0] * group_sum[g] / total;
      float& load = (*grouped)[e][g];
      load = expected + keep * (load - expected);
    }
  }
  return true;
}

// Loads per replica of at most these shares of a rank's mean load, where the
// greedy copies pack badly.
constexpr float kFirstThreshold = 1.0f;
constexpr float kThresholdStep = 0.96f;
constexpr float kLastThreshold = 0.3f;

// The copies that pack best.
template <size_t kNumGroups>
std::vector<uint32_t> BestCopies(
    const EplbOptions& options, const ExpertLayout& layout,
    const std::vector<GroupLoad<kNumGroups>>& loads,
    const std::function<bool()>& time_left) {
  EplbSearch<kNumGroups> search(layout, loads);
  std::vector<uint32_t> best = GreedyCopies<kNumGroups>(layout, loads);
  search.Pack(best);
  double best_ratio = search.Ratio();
  for (float threshold = kFirstThreshold;
       threshold > kLastThreshold && best_ratio > options.poor_ratio &&
       time_left();
       threshold *= kThresholdStep) {
    std::vector<uint32_t> copies =
        ThresholdCopies<kNumGroups>(layout, loads, threshold);
    if (copies.empty()) break;
    search.Pack(copies);
    if (search.Ratio() >= best_ratio) continue;
    best_ratio = search.Ratio();
    best = std::move(copies);
  }
  return best;
}

template <size_t kNumGroups>
EplbLayerPlan Plan(const EplbOptions& options, const ExpertLayout& layout,
                   const std::vector<GroupLoad<kNumGroups>>& loads,
                   std::span<const uint32_t> present,
                   const std::function<bool()>& time_left) {
  EplbLayerPlan plan;
  plan.experts.assign(present.begin(), present.end());
  plan.num_groups = kNumGroups;
  uint32_t left = 0;
  const auto may_improve = [&] {
    return left > 0 && left-- > 0 && time_left();
  };

  EplbSearch<kNumGroups> mended(layout, loads);
  mended.Start(present);
  plan.present_ratio = plan.planned_ratio = mended.Ratio();
  if (plan.present_ratio <= options.balanced_ratio || !time_left()) return plan;
  mended.MoveCopies();
  left = options.max_improvements;
  mended.Improve(options.target_ratio, may_improve);
  const EplbSearch<kNumGroups>* best = &mended;
  double best_ratio = mended.Ratio();

  EplbSearch<kNumGroups> packed(layout, loads);
  if (best_ratio > options.target_ratio + options.repack_gain && time_left()) {
    packed.Pack(BestCopies<kNumGroups>(options, layout, loads, time_left));
    left = options.max_improvements;
    packed.Improve(options.target_ratio, may_improve);
    if (packed.Ratio() < best_ratio - options.repack_gain) {
      packed.AlignRanks(present);
      best = &packed;
      best_ratio = packed.Ratio();
    }
  }
  if (best_ratio >= plan.present_ratio) return plan;
  plan.planned_ratio = best_ratio;
  plan.experts = best->Experts(present);
  for (size_t s = 0; s < present.size(); ++s) {
    plan.moved_slots += plan.experts[s] != present[s] ? 1 : 0;
  }
  return plan;
}

}  // namespace

EplbLayerPlan EplbPlanner::PlanLayer(
    const ExpertLoads& loads, const ExpertPlacement& present, uint32_t layer,
    const std::function<bool()>& time_left) const {
  const ExpertLayout& layout = present.layout();
  CHECK_EQ(loads.num_experts(), layout.num_experts);
  const std::span<const uint32_t> experts = present.experts(layer);
  EplbLayerPlan stay;
  stay.experts.assign(experts.begin(), experts.end());
  if (loads.num_rows() == 0 || layout.num_ranks == 1) return stay;
  GroupedLoads grouped = GroupRows(loads);
  const std::vector<GroupLoad<1>> sums = SumGroups(grouped);
  const bool loaded = std::any_of(sums.begin(), sums.end(),
                                  [](const auto& sum) { return sum[0] > 0; });
  if (!loaded) return stay;
  if (Denoise(&grouped)) {
    return Plan<kGroups>(options_, layout, grouped, experts, time_left);
  }
  return Plan<1>(options_, layout, sums, experts, time_left);
}

double PlacementRatio(const ExpertLayout& layout, const ExpertLoads& loads,
                      const std::vector<uint32_t>& experts) {
  CHECK_EQ(experts.size(), layout.num_slots());
  std::vector<float> share(layout.num_experts);
  for (const uint32_t e : experts) ++share[e];
  for (float& s : share) s = 1 / s;
  double most = 0, total = 0;
  for (uint32_t row = 0; row < loads.num_rows(); ++row) {
    const std::span<const uint32_t> counts = loads.row(row);
    double fullest = 0;
    for (uint32_t r = 0; r < layout.num_ranks; ++r) {
      double load = 0;
      for (uint32_t i = 0; i < layout.slots_per_rank; ++i) {
        const uint32_t e = experts[r * layout.slots_per_rank + i];
        load += counts[e] * share[e];
      }
      fullest = std::max(fullest, load);
      total += load;
    }
    most += fullest;
  }
  return total > 0 ? most * layout.num_ranks / total : 1;
}

}  // namespace baton
