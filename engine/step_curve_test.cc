#include "engine/step_curve.h"

#include <algorithm>
#include <map>
#include <vector>

#include "absl/time/time.h"
#include "gtest/gtest.h"

namespace baton {
namespace {

std::vector<absl::Duration> Times(const std::vector<StepCurvePoint>& curve) {
  std::vector<absl::Duration> times(curve.size());
  std::transform(curve.begin(), curve.end(), times.begin(),
                 [](const StepCurvePoint& point) { return point.time; });
  return times;
}

TEST(StepCurveTest, MeasuresRoundByRoundAndKeepsTheRows) {
  const uint32_t rows[] = {1, 4, 16};
  std::vector<uint32_t> calls;
  const std::vector<StepCurvePoint> curve =
      MeasureStepCurve(rows, [&](uint32_t r) {
        calls.push_back(r);
        return absl::Microseconds(100 + r);
      });
  ASSERT_EQ(calls.size(), 3u * (1 + kStepCurveRepetitions));
  for (size_t i = 0; i < calls.size(); ++i) EXPECT_EQ(calls[i], rows[i % 3]);
  ASSERT_EQ(curve.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(curve[i].rows, rows[i]);
    EXPECT_EQ(curve[i].time, absl::Microseconds(100 + rows[i]));
  }
}

TEST(StepCurveTest, TakesMediansAndLeavesTheWarmUpOut) {
  // Without the first, the median is 5; with it, or as a mean, it is more.
  const int micros[1 + kStepCurveRepetitions] = {900, 3, 800, 5, 700, 4};
  int call = 0;
  const uint32_t rows[] = {8};
  const std::vector<StepCurvePoint> curve = MeasureStepCurve(
      rows, [&](uint32_t) { return absl::Microseconds(micros[call++]); });
  EXPECT_EQ(Times(curve), std::vector<absl::Duration>{absl::Microseconds(5)});
}

TEST(StepCurveTest, PoolsTimesThatFallAlthoughRowsRise) {
  const uint32_t rows[] = {1, 2, 4, 8, 16, 32};
  std::map<uint32_t, int> micros = {{1, 10}, {2, 30},  {4, 20},
                                    {8, 10}, {16, 40}, {32, 38}};
  const std::vector<StepCurvePoint> curve = MeasureStepCurve(
      rows, [&](uint32_t r) { return absl::Microseconds(micros[r]); });
  const std::vector<absl::Duration> expected = {
      absl::Microseconds(10), absl::Microseconds(20), absl::Microseconds(20),
      absl::Microseconds(20), absl::Microseconds(39), absl::Microseconds(39)};
  EXPECT_EQ(Times(curve), expected);
}

TEST(StepCurveTest, NoRowsGiveNoCurve) {
  EXPECT_TRUE(MeasureStepCurve({}, [](uint32_t) {
                return absl::Microseconds(1);
              }).empty());
}

}  // namespace
}  // namespace baton
