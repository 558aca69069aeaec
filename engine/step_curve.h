// How long a step of so many rows takes, measured before the first request.
#ifndef BATON_ENGINE_STEP_CURVE_H_
#define BATON_ENGINE_STEP_CURVE_H_

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "absl/time/time.h"

namespace baton {

struct StepCurvePoint {
  uint32_t rows = 0;
  absl::Duration time;
};

// Measurements of each point that count; one more before them warms up.
inline constexpr uint32_t kStepCurveRepetitions = 5;

// Calls `measure` for each of `rows` in turn, 1 + kStepCurveRepetitions rounds,
// so that a slow second of the machine falls on all points alike. Each point is
// the median of its rounds but the first. Where medians fall although rows
// rise, they are pooled into their mean: isotonic regression, by pool adjacent
// violators (Barlow et al., Statistical Inference under Order Restrictions,
// 1972). REQUIRES: `rows` strictly ascending.
std::vector<StepCurvePoint> MeasureStepCurve(
    std::span<const uint32_t> rows,
    const std::function<absl::Duration(uint32_t)>& measure);

}  // namespace baton

#endif  // BATON_ENGINE_STEP_CURVE_H_
