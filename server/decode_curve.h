// How long a decode step takes, by its rows.
#ifndef BATON_SERVER_DECODE_CURVE_H_
#define BATON_SERVER_DECODE_CURVE_H_

#include <vector>

#include "base/clock.h"
#include "engine/engine_options.h"
#include "engine/model_runner.h"
#include "engine/step_curve.h"

namespace baton {

// Runs forward passes of 1, 2, 4.. rows up to the most that a decode step of
// these options has, in the pool's first block. REQUIRES: the pool is bound,
// and nobody uses it yet.
std::vector<StepCurvePoint> MeasureDecodeCurve(ModelRunner* model,
                                               const EngineOptions& options,
                                               const Clock& clock);

}  // namespace baton

#endif  // BATON_SERVER_DECODE_CURVE_H_
