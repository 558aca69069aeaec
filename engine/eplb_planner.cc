#include "engine/eplb_planner.h"

#include <algorithm>
#include <array>
#include <functional>
#include <numeric>
#include <span>
#include <utility>

#include "base/logging.h"
#include "engine/eplb_loads.h"
#include "engine/eplb_search.h"
#include "engine/expert_alignment.h"

namespace baton {
namespace {

constexpr int kGroups = EplbPlanner::kNumGroups;
using GroupedLoads = std::vector<GroupLoad<kGroups>>;

// Below this index of dispersion groups differ by little more than chance, and
// their sum plans better.
constexpr double kChance = 1.5;
// Steps differ more than means over groups of them, and the steps that a plan
// is for more than those it was made of. Measured: 4 to 8 are much alike, 1 is
// far worse.
constexpr double kForesight = 6;

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

// Each expert's share of all groups' load, as if no group differed.
class EvenLoads {
 public:
  explicit EvenLoads(const GroupedLoads& grouped) : sums_(SumGroups(grouped)) {
    for (const auto& load : grouped) {
      for (int g = 0; g < kGroups; ++g) group_sum_[g] += load[g];
    }
    total_ = std::accumulate(group_sum_.begin(), group_sum_.end(), 0.0);
  }
  double Of(size_t expert, int group) const {
    return sums_[expert][0] * group_sum_[group] / total_;
  }
  // How many differences are free: of experts with load, in groups with load.
  double num_free() const {
    const auto loaded = [](const auto& load) { return load > 0; };
    const auto experts = std::count_if(
        sums_.begin(), sums_.end(), [](const auto& sum) { return sum[0] > 0; });
    const auto groups =
        std::count_if(group_sum_.begin(), group_sum_.end(), loaded);
    return (experts - 1.0) * (groups - 1.0);
  }

 private:
  const std::vector<GroupLoad<1>> sums_;
  std::array<double, kGroups> group_sum_ = {};
  double total_ = 0;
};

// Takes out of each expert's differences from group to group what chance
// explains and enlarges the rest; false if that is all. Groups without load
// stay so.
bool ForeseeDifferences(GroupedLoads* grouped) {
  const EvenLoads even(*grouped);
  if (even.num_free() <= 0) return false;
  double chi_square = 0;
  for (size_t e = 0; e < grouped->size(); ++e) {
    for (int g = 0; g < kGroups; ++g) {
      const double expected = even.Of(e, g);
      const double d = (*grouped)[e][g] - expected;
      if (expected > 0) chi_square += d * d / expected;
    }
  }
  const double dispersion = chi_square / even.num_free();
  if (dispersion < kChance) return false;
  const double scale = kForesight * (1 - 1 / dispersion);
  for (size_t e = 0; e < grouped->size(); ++e) {
    for (int g = 0; g < kGroups; ++g) {
      const double expected = even.Of(e, g);
      float& load = (*grouped)[e][g];
      load = std::max(0.0, expected + scale * (load - expected));
    }
  }
  return true;
}

// Loads per replica of at most these shares of a rank's mean load, tried where
// greedy copies pack the sums no better than kPoorRatio.
constexpr double kPoorRatio = 1.03;
constexpr float kThresholdStep = 0.93f;
constexpr float kLastThreshold = 0.3f;

// The copies by threshold that pack best; empty if greedy ones do, or do well.
std::vector<uint32_t> PackingCopies(const ExpertLayout& layout,
                                    const std::vector<GroupLoad<1>>& sums,
                                    const std::function<bool()>& time_left) {
  EplbSearch<1> search(layout, sums);
  search.Pack(GreedyCopies<1>(layout, sums));
  double best_ratio = search.Ratio();
  std::vector<uint32_t> best;
  for (float threshold = 1;
       threshold > kLastThreshold && best_ratio > kPoorRatio && time_left();
       threshold *= kThresholdStep) {
    std::vector<uint32_t> copies = ThresholdCopies<1>(layout, sums, threshold);
    if (copies.empty()) break;
    search.Pack(copies);
    if (search.Ratio() >= best_ratio) continue;
    best_ratio = search.Ratio();
    best = std::move(copies);
  }
  return best;
}

// Mending so bad a placement takes longer than packing anew.
constexpr double kHopeless = 1.25;

// One layer: what is asked, and the search.
template <size_t kNumGroups>
class LayerPlanner {
 public:
  LayerPlanner(const EplbOptions& options, const ExpertLayout& layout,
               const std::vector<GroupLoad<kNumGroups>>& loads,
               const std::vector<GroupLoad<1>>& sums,
               const std::function<bool()>& time_left)
      : options_(options),
        layout_(layout),
        loads_(loads),
        sums_(sums),
        time_left_(time_left),
        mended_(layout, loads),
        packed_(layout, loads) {}

  EplbLayerPlan Plan(std::span<const uint32_t> present) {
    EplbLayerPlan plan;
    plan.experts.assign(present.begin(), present.end());
    plan.num_groups = kNumGroups;
    mended_.Start(present);
    plan.present_ratio = plan.planned_ratio = mended_.Ratio();
    if (plan.present_ratio <= options_.balanced_ratio || !time_left_()) {
      return plan;
    }
    const EplbSearch<kNumGroups>& best = Search();
    if (best.Ratio() > plan.present_ratio - options_.min_gain) return plan;
    plan.planned_ratio = best.Ratio();
    plan.experts = best.experts();
    if (&best == &packed_) {
      plan.experts = AlignRanks(layout_, present, plan.experts);
    }
    plan.experts = AlignSlots(layout_, present, plan.experts);
    for (size_t s = 0; s < present.size(); ++s) {
      plan.moved_slots += plan.experts[s] != present[s] ? 1 : 0;
    }
    return plan;
  }

 private:
  // Mends for a while, packs anew if that was not enough, and goes on with the
  // better of the two.
  const EplbSearch<kNumGroups>& Search() {
    mended_.MoveCopies();
    if (mended_.Ratio() < kHopeless) {
      Improve(&mended_, options_.max_improvements / 4);
    }
    const double enough = options_.target_ratio + options_.repack_gain;
    if (mended_.Ratio() <= enough || !time_left_()) return mended_;
    std::vector<uint32_t> copies = PackingCopies(layout_, sums_, time_left_);
    if (copies.empty()) copies = GreedyCopies<kNumGroups>(layout_, loads_);
    packed_.Pack(copies);
    Improve(&packed_, options_.max_improvements / 4);
    const bool repack =
        packed_.Ratio() < mended_.Ratio() - options_.repack_gain;
    EplbSearch<kNumGroups>* best = repack ? &packed_ : &mended_;
    Improve(best, options_.max_improvements / 2);
    return *best;
  }

  void Improve(EplbSearch<kNumGroups>* search, uint32_t left) {
    search->Improve(options_.target_ratio,
                    [&] { return left > 0 && left-- > 0 && time_left_(); });
  }

  const EplbOptions& options_;
  const ExpertLayout& layout_;
  const std::vector<GroupLoad<kNumGroups>>& loads_;
  const std::vector<GroupLoad<1>>& sums_;
  const std::function<bool()>& time_left_;
  EplbSearch<kNumGroups> mended_;  // From the present placement.
  EplbSearch<kNumGroups> packed_;  // Anew.
};

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
  if (ForeseeDifferences(&grouped)) {
    return LayerPlanner<kGroups>(options_, layout, grouped, sums, time_left)
        .Plan(experts);
  }
  return LayerPlanner<1>(options_, layout, sums, sums, time_left).Plan(experts);
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
