// Placements of experts by EplbPlanner beside the published greedy algorithm:
// how evenly they load the ranks, and what planning takes. A table on stdout.
//
//   eplb_benchmark expert_loads.json
#include <algorithm>
#include <cstdio>
#include <ctime>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/logging.h"
#include "bench/expert_traces.h"
#include "bench/greedy_eplb.h"
#include "engine/eplb_planner.h"
#include "engine/expert_load_window.h"
#include "engine/expert_placement.h"

namespace baton {
namespace {

constexpr uint32_t kWindowSteps = 1000;
constexpr uint32_t kLaterSteps = 1000;
constexpr uint32_t kTokensPerRank = 64;
constexpr uint32_t kTopK = 8;
constexpr uint32_t kTimedLayers = 58;

struct Case {
  std::string name;
  uint32_t num_experts = 256;
  uint32_t num_slots = 288;
  uint32_t num_ranks = 32;
  std::vector<ShareSource> layers;
};

// Means over layers.
struct Placed {
  double planned = 0;   // On the window's summed loads.
  double realised = 0;  // Per step, over later steps.
  double moved = 0;     // Of all slots.
  absl::Duration time;  // For kTimedLayers.
};

struct Outcome {
  Placed in_order, greedy, planner, again;
  double bound = 0;
  absl::Duration raw_time;  // With every step a row of its own.
  double raw_realised = 0;
  double groups = 0;
};

ExpertLayout LayoutOf(const Case& c) {
  const auto layout = MakeExpertLayout(1, c.num_experts, c.num_ranks,
                                       c.num_slots - c.num_experts);
  CHECK_OK(layout.status());
  return *layout;
}

std::vector<double> SumRows(const ExpertLoads& loads) {
  std::vector<double> sums(loads.num_experts());
  for (uint32_t r = 0; r < loads.num_rows(); ++r) {
    const auto row = loads.row(r);
    for (size_t e = 0; e < row.size(); ++e) sums[e] += row[e];
  }
  return sums;
}

// Slowest over mean, the mean over rows of the rows' own.
double MeanRatio(const ExpertLayout& layout, const ExpertLoads& loads,
                 const std::vector<uint32_t>& experts) {
  double sum = 0;
  for (uint32_t r = 0; r < loads.num_rows(); ++r) {
    sum += PlacementRatio(
        layout, ExpertLoads(loads.row(r), loads.num_experts()), experts);
  }
  return sum / loads.num_rows();
}

double SummedRatio(const ExpertLayout& layout, const ExpertLoads& loads,
                   const std::vector<uint32_t>& experts) {
  std::vector<uint32_t> sums;
  for (const double sum : SumRows(loads)) sums.push_back(sum);
  return PlacementRatio(layout, ExpertLoads(sums, loads.num_experts()),
                        experts);
}

// The experts in a line, the most loaded first, as long as the window's loads,
// cut into equal pieces: shares of experts that no slots limit. The ratio that
// the draws of later steps leave even so.
double FractionalRatio(uint32_t num_ranks, const std::vector<double>& window,
                       const ExpertLoads& later) {
  std::vector<uint32_t> order(window.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    return window[a] > window[b];
  });
  const double piece =
      std::accumulate(window.begin(), window.end(), 0.0) / num_ranks;
  double ratio = 0;
  for (uint32_t row = 0; row < later.num_rows(); ++row) {
    const auto counts = later.row(row);
    std::vector<double> ranks(num_ranks);
    double position = 0, total = 0;
    for (const uint32_t e : order) {
      total += counts[e];
      const double end = position + window[e];
      while (position < end) {
        const auto rank =
            std::min<uint32_t>(num_ranks - 1, (position + 1e-6) / piece);
        const double stop =
            rank + 1 == num_ranks ? end : std::min(end, piece * (rank + 1));
        ranks[rank] += counts[e] * (stop - position) / window[e];
        position = stop;
      }
    }
    ratio += *std::max_element(ranks.begin(), ranks.end()) * num_ranks / total;
  }
  return ratio / later.num_rows();
}

// Layer by layer through `place`, which returns the experts by slot.
Placed Measure(const ExpertLayout& layout,
               const std::vector<ExpertLoads>& window,
               const std::vector<ExpertLoads>& later,
               const std::vector<uint32_t>& before,
               const std::function<std::vector<uint32_t>(size_t)>& place) {
  Placed placed;
  for (size_t layer = 0; layer < window.size(); ++layer) {
    const std::vector<uint32_t> experts = place(layer);
    placed.planned +=
        SummedRatio(layout, window[layer], experts) / window.size();
    placed.realised += MeanRatio(layout, later[layer], experts) / window.size();
    for (size_t s = 0; s < experts.size(); ++s) {
      const double slots = 1.0 * window.size() * experts.size();
      placed.moved += experts[s] != before[s] ? 1 / slots : 0;
    }
  }
  const std::clock_t start = std::clock();
  for (size_t i = 0; i < kTimedLayers; ++i) place(i % window.size());
  placed.time = absl::Seconds(1.0 * (std::clock() - start) / CLOCKS_PER_SEC);
  return placed;
}

Outcome Run(const Case& c) {
  const ExpertLayout layout = LayoutOf(c);
  const uint32_t draws = kTokensPerRank * kTopK * c.num_ranks;
  const size_t window_size = size_t{kWindowSteps} * c.num_experts;
  const auto num_layers = static_cast<uint32_t>(c.layers.size());
  std::vector<std::vector<uint32_t>> counts;
  ExpertLoadWindow rows({.num_layers = num_layers,
                         .num_experts = c.num_experts,
                         .num_steps = kWindowSteps});
  for (uint32_t layer = 0; layer < num_layers; ++layer) {
    counts.push_back(DrawSteps(c.layers[layer], kWindowSteps + kLaterSteps,
                               draws, 1 + layer));
  }
  std::vector<ExpertLoads> window, later, grouped;
  for (uint32_t step = 0; step < kWindowSteps; ++step) {
    for (uint32_t layer = 0; layer < num_layers; ++layer) {
      const std::span<const uint32_t> all = counts[layer];
      rows.AddCounts(layer,
                     all.subspan(size_t{step} * c.num_experts, c.num_experts));
    }
    rows.EndStep();
  }
  for (uint32_t layer = 0; layer < num_layers; ++layer) {
    const std::span<const uint32_t> all = counts[layer];
    window.emplace_back(all.first(window_size), c.num_experts);
    later.emplace_back(all.subspan(window_size), c.num_experts);
    grouped.push_back(rows.Loads(layer));
  }

  Outcome outcome;
  const ExpertPlacement start(layout);
  const std::vector<uint32_t> in_order(start.experts(0).begin(),
                                       start.experts(0).end());
  const EplbPlanner planner((EplbOptions()));
  const auto forever = [] { return true; };
  outcome.in_order = Measure(layout, window, later, in_order,
                             [&](size_t) { return in_order; });
  outcome.greedy = Measure(layout, window, later, in_order, [&](size_t layer) {
    return GreedyPlacement(layout, SumRows(grouped[layer]));
  });
  std::vector<ExpertPlacement> placements(num_layers, start);
  outcome.planner = Measure(layout, window, later, in_order, [&](size_t layer) {
    EplbLayerPlan plan = planner.PlanLayer(grouped[layer], start, 0, forever);
    CHECK_OK(placements[layer].SetLayer(0, plan.experts));
    outcome.groups = plan.num_groups;
    return plan.experts;
  });
  const Placed raw =
      Measure(layout, window, later, in_order, [&](size_t layer) {
        return planner.PlanLayer(window[layer], start, 0, forever).experts;
      });
  outcome.raw_time = raw.time;
  outcome.raw_realised = raw.realised;
  // Later steps are the next window.
  outcome.again = Measure(layout, later, later, in_order, [&](size_t layer) {
    return planner.PlanLayer(later[layer], placements[layer], 0, forever)
        .experts;
  });
  outcome.again.moved = 0;
  for (uint32_t layer = 0; layer < num_layers; ++layer) {
    outcome.again.moved +=
        1.0 *
        planner.PlanLayer(later[layer], placements[layer], 0, forever)
            .moved_slots /
        layout.num_slots() / num_layers;
    outcome.bound +=
        FractionalRatio(c.num_ranks, SumRows(window[layer]), later[layer]) /
        num_layers;
  }
  return outcome;
}

void Print(const Case& c) {
  const Outcome o = Run(c);
  std::printf(
      "| %s, %u on %u | %.3f, %.4f, %.4f | %.3f, %.4f, %.4f (%.4f) | %.4f | "
      "%.1f, %.1f (%.1f) | "
      "%.0f, %.0f, %.0f %% | %.0f\n",
      c.name.c_str(), c.num_slots, c.num_ranks, o.in_order.planned,
      o.greedy.planned, o.planner.planned, o.in_order.realised,
      o.greedy.realised, o.planner.realised, o.raw_realised, o.bound,
      absl::ToDoubleMilliseconds(o.greedy.time),
      absl::ToDoubleMilliseconds(o.planner.time),
      absl::ToDoubleMilliseconds(o.raw_time), 100 * o.greedy.moved,
      100 * o.planner.moved, 100 * o.again.moved, o.groups);
  std::fflush(stdout);
}

constexpr uint32_t kSyntheticLayers = 4;

std::vector<Case> SyntheticCases(uint32_t num_slots, uint32_t num_ranks) {
  const auto make = [&](std::string name,
                        const std::function<ShareSource(uint64_t)>& source) {
    Case c{.name = std::move(name),
           .num_slots = num_slots,
           .num_ranks = num_ranks,
           .layers = {}};
    for (uint32_t layer = 0; layer < kSyntheticLayers; ++layer)
      c.layers.push_back(source(layer));
    return c;
  };
  std::vector<Case> cases;
  for (const double exponent : {0.6, 1.0, 1.4}) {
    cases.push_back(make("zipf " + std::to_string(exponent).substr(0, 3),
                         [&](uint64_t layer) {
                           return Stationary(ZipfShares(256, exponent, layer));
                         }));
  }
  cases.push_back(make("lognormal 1", [&](uint64_t layer) {
    return Stationary(LognormalShares(256, 1, layer));
  }));
  cases.push_back(make("drifting zipf 0.6", [&](uint64_t layer) {
    return Drifting(
        {ZipfShares(256, 0.6, layer), ZipfShares(256, 0.6, layer + 100)}, 4000);
  }));
  cases.push_back(make("mixed zipf 0.6", [&](uint64_t layer) {
    return Mixed({ZipfShares(256, 0.6, layer),
                  ZipfShares(256, 0.6, layer + 100),
                  ZipfShares(256, 0.6, layer + 200)});
  }));
  return cases;
}

std::vector<Case> GoldenCases(const std::vector<std::vector<Shares>>& kinds,
                              uint32_t num_slots, uint32_t num_ranks) {
  Case stationary{"golden", 64, num_slots, num_ranks, {}};
  Case drifting{"golden, drifting", 64, num_slots, num_ranks, {}};
  Case mixed{"golden, mixed", 64, num_slots, num_ranks, {}};
  for (size_t layer = 0; layer < kinds[0].size(); ++layer) {
    std::vector<Shares> parts;
    Shares even(64);
    for (const auto& kind : kinds) {
      parts.push_back(kind[layer]);
      for (size_t e = 0; e < even.size(); ++e)
        even[e] += kind[layer][e] / kinds.size();
    }
    stationary.layers.push_back(Stationary(even));
    drifting.layers.push_back(Drifting(parts, 800));
    mixed.layers.push_back(Mixed(parts));
  }
  return {stationary, drifting, mixed};
}

int Main(int argc, char** argv) {
  CHECK_GE(argc, 2) << "give expert_loads.json";
  const std::string only = argc > 2 ? argv[2] : "";
  const auto print = [&](const Case& c) { if (c.name.find(only) == 0) Print(c); };
  const auto kinds = ReadGoldenShares(argv[1]);
  CHECK_OK(kinds.status());
  for (const auto& [slots, ranks] :
       {std::pair{288u, 32u}, {320u, 64u}, {384u, 128u}}) {
    for (const Case& c : SyntheticCases(slots, ranks)) print(c);
  }
  for (const auto& [slots, ranks] :
       {std::pair{72u, 8u}, {96u, 32u}, {128u, 64u}, {128u, 128u}}) {
    for (const Case& c : GoldenCases(*kinds, slots, ranks)) print(c);
  }
  return 0;
}

}  // namespace
}  // namespace baton

int main(int argc, char** argv) { return baton::Main(argc, argv); }
