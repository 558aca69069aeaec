#include "engine/step_curve.h"

#include <algorithm>
#include <array>

namespace baton {
namespace {

// Neighbouring points that get one time.
struct Pool {
  absl::Duration sum;
  int64_t count;

  absl::Duration mean() const { return sum / count; }
};

void MakeMonotone(std::vector<StepCurvePoint>* curve) {
  std::vector<Pool> pools;
  for (const StepCurvePoint& point : *curve) {
    Pool pool = {point.time, 1};
    while (!pools.empty() && pools.back().mean() > pool.mean()) {
      pool = {pool.sum + pools.back().sum, pool.count + pools.back().count};
      pools.pop_back();
    }
    pools.push_back(pool);
  }
  auto point = curve->begin();
  for (const Pool& pool : pools) {
    for (int64_t i = 0; i < pool.count; ++i) (point++)->time = pool.mean();
  }
}

}  // namespace

std::vector<StepCurvePoint> MeasureStepCurve(
    std::span<const uint32_t> rows,
    const std::function<absl::Duration(uint32_t)>& measure) {
  using Times = std::array<absl::Duration, kStepCurveRepetitions>;
  for (const uint32_t r : rows) measure(r);
  std::vector<Times> times(rows.size());
  for (uint32_t round = 0; round < kStepCurveRepetitions; ++round) {
    for (size_t i = 0; i < rows.size(); ++i) times[i][round] = measure(rows[i]);
  }
  std::vector<StepCurvePoint> curve;
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto median = times[i].begin() + kStepCurveRepetitions / 2;
    std::nth_element(times[i].begin(), median, times[i].end());
    curve.push_back({rows[i], *median});
  }
  MakeMonotone(&curve);
  return curve;
}

}  // namespace baton
