// What a decode step pays to choose the drafts that it verifies.
#include <benchmark/benchmark.h>

#include <random>
#include <vector>

#include "absl/time/time.h"
#include "engine/engine_options.h"
#include "engine/step_curve.h"
#include "engine/verification_planner.h"

namespace baton {
namespace {

std::vector<StepCurvePoint> Curve(uint32_t max_rows) {
  std::vector<StepCurvePoint> curve;
  for (uint32_t rows = 1; rows <= max_rows; rows *= 2) {
    curve.push_back({rows, absl::Microseconds(10000 + 2 * rows)});
  }
  return curve;
}

void BM_ChooseDrafts(benchmark::State& state) {
  const auto num_sequences = static_cast<uint32_t>(state.range(0));
  VerificationPlanner planner(Curve(8192), num_sequences);
  std::mt19937 random(1);
  std::uniform_real_distribution<float> confidence(0.3f, 1.0f);
  std::vector<DraftRates> rates(num_sequences);
  for (DraftRates& r : rates) {
    r.num_drafts = kMaxDraftTokens;
    for (float& c : r.confidence) c = confidence(random);
  }
  std::vector<uint32_t> verify(num_sequences);
  for (auto _ : state) {
    planner.Choose(rates, num_sequences * (1 + kMaxDraftTokens), verify);
    benchmark::DoNotOptimize(verify.data());
    benchmark::ClobberMemory();
  }
}
BENCHMARK(BM_ChooseDrafts)->ArgName("sequences")->Arg(1)->Arg(32)->Arg(1024);

void BM_ObserveStep(benchmark::State& state) {
  VerificationPlanner planner(Curve(8192), 1024);
  uint32_t rows = 0;
  for (auto _ : state) {
    rows = (rows + 37) % 6000;
    planner.Observe(rows, absl::Microseconds(10000 + 3 * rows));
  }
}
BENCHMARK(BM_ObserveStep);

}  // namespace
}  // namespace baton

BENCHMARK_MAIN();
