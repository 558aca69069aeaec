// Placements of experts by EplbPlanner beside the published greedy algorithm:
// how evenly they load the ranks, and what planning takes. A table on stdout.
//
//   eplb_benchmark expert_loads.json [beginning of the traces' names]
#include <algorithm>
#include <cstdio>
#include <ctime>
#include <functional>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
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
constexpr double kBudgetSeconds = 0.020;  // For kTimedLayers.
constexpr uint32_t kSyntheticLayers = 4;
// Seeds. The planner's constants were chosen on others.
constexpr uint64_t kFirstShares = 5000;
constexpr uint64_t kFirstDraws = 777;

using Experts = std::vector<uint32_t>;  // By slot.
using TimeLeft = std::function<bool()>;

struct Case {
  std::string name;
  uint32_t num_experts;
  uint32_t num_slots;
  uint32_t num_ranks;
  std::vector<ShareSource> layers;
};

// The process's, so that other work on the machine counts little.
double CpuSeconds() { return 1.0 * std::clock() / CLOCKS_PER_SEC; }

std::vector<double> SumRows(const ExpertLoads& loads) {
  std::vector<double> sums(loads.num_experts());
  for (uint32_t r = 0; r < loads.num_rows(); ++r) {
    const auto row = loads.row(r);
    for (size_t e = 0; e < row.size(); ++e) sums[e] += row[e];
  }
  return sums;
}

// The draws of a case, layer by layer: a window's, and those of the steps
// after.
struct Draws {
  explicit Draws(const Case& c)
      : rows({.num_layers = static_cast<uint32_t>(c.layers.size()),
              .num_experts = c.num_experts,
              .num_steps = kWindowSteps}) {
    const uint32_t experts = c.num_experts;
    for (size_t layer = 0; layer < c.layers.size(); ++layer) {
      counts.push_back(DrawSteps(c.layers[layer], kWindowSteps + kLaterSteps,
                                 kTokensPerRank * kTopK * c.num_ranks,
                                 kFirstDraws + layer));
    }
    for (const std::vector<uint32_t>& of_layer : counts) {
      const std::span<const uint32_t> all = of_layer;
      steps.emplace_back(all.first(size_t{kWindowSteps} * experts), experts);
      later.emplace_back(all.subspan(size_t{kWindowSteps} * experts), experts);
    }
    for (uint32_t step = 0; step < kWindowSteps; ++step) {
      for (size_t layer = 0; layer < counts.size(); ++layer) {
        rows.AddCounts(layer, steps[layer].row(step));
      }
      rows.EndStep();
    }
  }

  std::vector<std::vector<uint32_t>> counts;
  std::vector<ExpertLoads> steps;  // Of the window.
  ExpertLoadWindow rows;           // The same.
  std::vector<ExpertLoads> later;
};

// Slowest over mean on the sum of all rows.
double SummedRatio(const ExpertLayout& layout, const ExpertLoads& loads,
                   const Experts& experts) {
  std::vector<uint32_t> sums;
  for (const double sum : SumRows(loads)) sums.push_back(sum);
  return PlacementRatio(layout, ExpertLoads(sums, loads.num_experts()),
                        experts);
}

// Mean over layers.
double Planned(const ExpertLayout& layout, const Draws& draws,
               const std::vector<Experts>& placed) {
  double sum = 0;
  for (size_t layer = 0; layer < placed.size(); ++layer) {
    sum += SummedRatio(layout, draws.steps[layer], placed[layer]);
  }
  return sum / placed.size();
}

// Mean over layers and later steps of slowest over mean. (Each step has the
// same load, so the ratio of the sums is the mean of the ratios.)
double Realised(const ExpertLayout& layout, const Draws& draws,
                const std::vector<Experts>& placed) {
  double sum = 0;
  for (size_t layer = 0; layer < placed.size(); ++layer) {
    sum += PlacementRatio(layout, draws.later[layer], placed[layer]);
  }
  return sum / placed.size();
}

// The experts in a line, the most loaded first, each as long as its load in the
// window, cut into equal pieces, one a rank; at each later step an expert's
// draws divide as its length does. No slots limit this, and on the window it is
// perfect.
double FractionalRatio(uint32_t num_ranks, const std::vector<double>& window,
                       const ExpertLoads& later) {
  Experts order(window.size());
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
    double begin = 0, total = 0;
    for (const uint32_t e : order) {
      const double end = begin + window[e];
      total += counts[e];
      for (auto r = static_cast<uint32_t>(begin / piece);
           r < num_ranks && r * piece < end; ++r) {
        const double part =
            std::min(end, (r + 1) * piece) - std::max(begin, r * piece);
        if (part > 0) ranks[r] += counts[e] * part / window[e];
      }
      begin = end;
    }
    ratio += *std::max_element(ranks.begin(), ranks.end()) * num_ranks / total;
  }
  return ratio / later.num_rows();
}

std::vector<Experts> PlaceAll(size_t num_layers,
                              const std::function<Experts(size_t)>& place) {
  std::vector<Experts> placed;
  for (size_t layer = 0; layer < num_layers; ++layer) {
    placed.push_back(place(layer));
  }
  return placed;
}

// What kTimedLayers take, the case's layers by turns.
double Milliseconds(size_t num_layers,
                    const std::function<Experts(size_t)>& place) {
  const double start = CpuSeconds();
  for (size_t i = 0; i < kTimedLayers; ++i) place(i % num_layers);
  return 1e3 * (CpuSeconds() - start);
}

double MovedPercent(const std::vector<Experts>& from,
                    const std::vector<Experts>& to) {
  double moved = 0;
  for (size_t layer = 0; layer < from.size(); ++layer) {
    for (size_t s = 0; s < from[layer].size(); ++s) {
      moved += from[layer][s] != to[layer][s] ? 1.0 / from[layer].size() : 0;
    }
  }
  return 100 * moved / from.size();
}

void Run(const Case& c) {
  const auto made = MakeExpertLayout(1, c.num_experts, c.num_ranks,
                                     c.num_slots - c.num_experts);
  CHECK_OK(made.status());
  const ExpertLayout& layout = *made;
  const Draws draws(c);
  const size_t layers = c.layers.size();
  const EplbPlanner planner((EplbOptions()));
  const ExpertPlacement start(layout);
  const TimeLeft always = [] { return true; };

  const auto greedy = [&](size_t layer) {
    return GreedyPlacement(layout, SumRows(draws.rows.Loads(layer)));
  };
  const auto by_rows = [&](size_t layer) {
    return planner.PlanLayer(draws.rows.Loads(layer), start, 0, always).experts;
  };
  const auto by_steps = [&](size_t layer) {
    return planner.PlanLayer(draws.steps[layer], start, 0, always).experts;
  };
  const auto in_time = [&](size_t layer) {
    const double end = CpuSeconds() + kBudgetSeconds / kTimedLayers;
    return planner
        .PlanLayer(draws.rows.Loads(layer), start, 0,
                   [end] { return CpuSeconds() < end; })
        .experts;
  };
  const std::vector<Experts> at_start(
      layers, Experts(start.experts(0).begin(), start.experts(0).end()));
  const std::vector<Experts> by_greedy = PlaceAll(layers, greedy);
  const std::vector<Experts> placed = PlaceAll(layers, by_rows);
  const std::vector<Experts> quick = PlaceAll(layers, in_time);
  const std::vector<Experts> again = PlaceAll(layers, [&](size_t layer) {
    ExpertPlacement present = start;
    CHECK_OK(present.SetLayer(0, placed[layer]));
    return planner.PlanLayer(draws.later[layer], present, 0, always).experts;
  });
  double bound = 0;
  for (size_t layer = 0; layer < layers; ++layer) {
    bound += FractionalRatio(c.num_ranks, SumRows(draws.steps[layer]),
                             draws.later[layer]) /
             layers;
  }
  const auto realised = [&](const std::vector<Experts>& experts) {
    return Realised(layout, draws, experts);
  };
  std::printf(
      "| %s | %u on %u | %.4f, %.4f | %.2f, %.3f, **%.3f**, %.3f, %.3f | %.3f "
      "| %.0f, %.0f, %.0f, %.0f | %.0f, %.0f, %.0f |\n",
      c.name.c_str(), c.num_slots, c.num_ranks,
      Planned(layout, draws, by_greedy), Planned(layout, draws, placed),
      realised(at_start), realised(by_greedy), realised(placed),
      realised(quick), realised(PlaceAll(layers, by_steps)), bound,
      Milliseconds(layers, greedy), Milliseconds(layers, by_rows),
      Milliseconds(layers, in_time), Milliseconds(layers, by_steps),
      MovedPercent(at_start, by_greedy), MovedPercent(at_start, placed),
      MovedPercent(placed, again));
  std::fflush(stdout);
}

std::vector<Case> SyntheticCases(uint32_t num_slots, uint32_t num_ranks) {
  std::vector<Case> cases;
  const auto add = [&](std::string name,
                       const std::function<ShareSource(uint64_t)>& source) {
    Case& c = cases.emplace_back(
        Case{std::move(name), 256, num_slots, num_ranks, {}});
    for (uint64_t layer = 0; layer < kSyntheticLayers; ++layer) {
      c.layers.push_back(source(kFirstShares + layer));
    }
  };
  for (const auto& [name, exponent] :
       {std::pair{"zipf 0.6", 0.6}, {"zipf 1.0", 1.0}, {"zipf 1.4", 1.4}}) {
    add(name, [exponent = exponent](uint64_t layer) {
      return Stationary(ZipfShares(256, exponent, layer));
    });
  }
  add("lognormal", [](uint64_t layer) {
    return Stationary(LognormalShares(256, 1, layer));
  });
  add("zipf 0.6, drifting", [](uint64_t layer) {
    return Drifting(
        {ZipfShares(256, 0.6, layer), ZipfShares(256, 0.6, layer + 100)}, 4000);
  });
  add("zipf 0.6, mixed", [](uint64_t layer) {
    return Mixed({ZipfShares(256, 0.6, layer),
                  ZipfShares(256, 0.6, layer + 100),
                  ZipfShares(256, 0.6, layer + 200)});
  });
  return cases;
}

std::vector<Case> GoldenCases(const std::vector<std::vector<Shares>>& kinds,
                              uint32_t num_slots, uint32_t num_ranks) {
  const auto experts = static_cast<uint32_t>(kinds[0][0].size());
  Case even{"golden", experts, num_slots, num_ranks, {}};
  Case drifting{"golden, drifting", experts, num_slots, num_ranks, {}};
  Case mixed{"golden, mixed", experts, num_slots, num_ranks, {}};
  for (size_t layer = 0; layer < kinds[0].size(); ++layer) {
    std::vector<Shares> parts;
    for (const auto& kind : kinds) parts.push_back(kind[layer]);
    even.layers.push_back(Stationary(EvenMix(parts)));
    drifting.layers.push_back(Drifting(parts, 4000));
    mixed.layers.push_back(Mixed(parts));
  }
  return {even, drifting, mixed};
}

int Main(int argc, char** argv) {
  CHECK(argc == 2 || argc == 3) << "give expert_loads.json";
  const std::string only = argc == 3 ? argv[2] : "";
  const auto kinds = ReadGoldenShares(argv[1]);
  CHECK_OK(kinds.status());
  std::vector<Case> cases;
  for (const auto& [slots, ranks] :
       {std::pair{288u, 32u}, {320u, 64u}, {384u, 128u}}) {
    for (Case& c : SyntheticCases(slots, ranks)) cases.push_back(std::move(c));
  }
  for (const auto& [slots, ranks] :
       {std::pair{72u, 8u}, {96u, 32u}, {128u, 128u}}) {
    for (Case& c : GoldenCases(*kinds, slots, ranks)) {
      cases.push_back(std::move(c));
    }
  }
  for (const Case& c : cases) {
    if (absl::StartsWith(c.name, only)) Run(c);
  }
  return 0;
}

}  // namespace
}  // namespace baton

int main(int argc, char** argv) { return baton::Main(argc, argv); }
