#include "engine/verification_planner.h"

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <limits>
#include <new>
#include <random>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "engine/engine_options.h"
#include "engine/step_curve.h"
#include "gtest/gtest.h"

namespace {
uint64_t num_allocations = 0;  // One thread.
}  // namespace

// Not inlined: g++ would take free() for a mismatch.
[[gnu::noinline]] void* operator new(size_t bytes) {
  ++num_allocations;
  if (void* memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept {
  std::free(memory);
}

namespace baton {
namespace {

constexpr uint32_t kNoRowLimit = 1u << 20;
constexpr auto kMemory = VerificationPlanner::kMemorySteps;
constexpr auto kMinSamples = VerificationPlanner::kMinSamples;

// time(rows) = fixed + rows * each, in microseconds, at a few points.
std::vector<StepCurvePoint> LinearCurve(double fixed, double each) {
  std::vector<StepCurvePoint> curve;
  for (const uint32_t rows : {1u, 4u, 16u, 64u}) {
    curve.push_back({rows, absl::Microseconds(fixed + rows * each)});
  }
  return curve;
}

DraftRates Drafts(std::initializer_list<float> confidences) {
  DraftRates rates;
  for (const float c : confidences) rates.confidence[rates.num_drafts++] = c;
  return rates;
}

std::vector<uint32_t> Choose(VerificationPlanner* planner,
                             const std::vector<DraftRates>& rates,
                             uint32_t max_rows = kNoRowLimit) {
  std::vector<uint32_t> verify(rates.size(), 99);
  planner->Choose(rates, max_rows, verify);
  return verify;
}

double ExpectedTokens(const std::vector<DraftRates>& rates,
                      const std::vector<uint32_t>& verify) {
  double expected = static_cast<double>(rates.size());
  for (size_t i = 0; i < rates.size(); ++i) {
    double survival = 1;
    for (uint32_t j = 0; j < verify[i]; ++j) {
      expected += survival *= rates[i].confidence[j];
    }
  }
  return expected;
}

uint32_t Rows(const std::vector<uint32_t>& verify) {
  auto rows = static_cast<uint32_t>(verify.size());
  for (const uint32_t v : verify) rows += v;
  return rows;
}

double Value(const VerificationPlanner& planner,
             const std::vector<DraftRates>& rates,
             const std::vector<uint32_t>& verify) {
  return ExpectedTokens(rates, verify) /
         absl::ToDoubleSeconds(planner.PredictedTime(Rows(verify)));
}

// Calls `visit` with every way to verify a prefix of each sequence's drafts.
void ForEachAllocation(
    const std::vector<DraftRates>& rates,
    const std::function<void(const std::vector<uint32_t>&)>& visit) {
  std::vector<uint32_t> verify(rates.size(), 0);
  while (true) {
    visit(verify);
    size_t i = 0;
    while (i < rates.size() && verify[i] == rates[i].num_drafts) {
      verify[i++] = 0;
    }
    if (i == rates.size()) return;
    ++verify[i];
  }
}

TEST(VerificationPlannerTest, NoAllocationOfPrefixesIsBetter) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  const auto below = [&](uint32_t n) {
    return static_cast<uint32_t>(random() % n);
  };
  for (int round = 0; round < 300; ++round) {
    std::vector<StepCurvePoint> curve;
    for (uint32_t rows = 1 + below(3); rows < 22; rows += 1 + below(6)) {
      // Steps, plateaus and even falls.
      curve.push_back({rows, absl::Microseconds(20 + below(40) + 3 * rows)});
    }
    VerificationPlanner planner(curve, 4);
    for (uint32_t i = below(40); i > 0; --i) {
      planner.Observe(1 + below(24), absl::Microseconds(20 + below(200)));
    }
    std::vector<DraftRates> rates(below(5));
    for (DraftRates& r : rates) {
      r.num_drafts = below(kMaxDraftTokens + 1);
      for (float& c : r.confidence) c = static_cast<float>(below(9)) / 8;
    }
    const uint32_t max_rows = 4 + below(21);
    const std::vector<uint32_t> chosen = Choose(&planner, rates, max_rows);
    EXPECT_LE(Rows(chosen), max_rows);
    // A Duration's quarter nanosecond is 1e-5 of these times.
    const double value = Value(planner, rates, chosen);
    ForEachAllocation(rates, [&](const std::vector<uint32_t>& other) {
      if (Rows(other) > max_rows) return;
      EXPECT_LE(Value(planner, rates, other), value * (1 + 1e-4));
    });
  }
}

TEST(VerificationPlannerTest, CheapRowsVerifyAll) {
  VerificationPlanner planner(LinearCurve(1000, 0.1), 8);
  EXPECT_EQ(Choose(&planner, {Drafts({0.5f, 0.2f}), Drafts({}),
                              Drafts({0.1f, 0.9f, 0.9f, 0.9f, 0.9f})}),
            (std::vector<uint32_t>{2, 0, 5}));
}

TEST(VerificationPlannerTest, DearRowsVerifyNone) {
  VerificationPlanner planner(LinearCurve(1, 100), 8);
  EXPECT_EQ(Choose(&planner, {Drafts({0.9f, 0.9f}), Drafts({0.95f})}),
            (std::vector<uint32_t>{0, 0}));
}

TEST(VerificationPlannerTest, DearerRowsNeverVerifyMore) {
  const std::vector<DraftRates> rates = {Drafts({0.9f, 0.8f, 0.7f, 0.6f, 0.5f}),
                                         Drafts({0.5f, 0.9f}), Drafts({0.3f})};
  uint32_t rows = 3 + 8;
  uint32_t num_different = 0;
  for (double each = 0.01; each < 1000; each *= 1.5) {
    VerificationPlanner planner(LinearCurve(100, each), 8);
    const uint32_t now = Rows(Choose(&planner, rates));
    EXPECT_LE(now, rows) << each;
    num_different += now < rows ? 1 : 0;
    rows = now;
  }
  EXPECT_EQ(rows, 3u);
  EXPECT_GE(num_different, 4u);
}

TEST(VerificationPlannerTest, WithoutACurveEveryDraftIsVerified) {
  VerificationPlanner planner({}, 8);
  planner.Observe(3, absl::Milliseconds(1));
  EXPECT_EQ(planner.PredictedTime(3), absl::ZeroDuration());
  EXPECT_EQ(Choose(&planner, {Drafts({0, 0.5f}), Drafts({0.1f})}),
            (std::vector<uint32_t>{2, 1}));
}

TEST(VerificationPlannerTest, TheRowLimitKeepsTheLikeliestDrafts) {
  VerificationPlanner planner({}, 8);
  const std::vector<DraftRates> rates = {Drafts({0.5f, 0.5f}),
                                         Drafts({0.9f, 0.9f}), Drafts({0.4f})};
  EXPECT_EQ(Choose(&planner, rates, 6), (std::vector<uint32_t>{1, 2, 0}));
  EXPECT_EQ(Choose(&planner, rates, 4), (std::vector<uint32_t>{0, 1, 0}));
  EXPECT_EQ(Choose(&planner, rates, 3), (std::vector<uint32_t>{0, 0, 0}));
  EXPECT_EQ(Choose(&planner, rates, 0), (std::vector<uint32_t>{0, 0, 0}));
}

TEST(VerificationPlannerTest, TiesGoToTheLowerSequenceThenTheLowerDraft) {
  VerificationPlanner planner({}, 8);
  const std::vector<DraftRates> rates(3, Drafts({1, 1}));
  EXPECT_EQ(Choose(&planner, rates, 4), (std::vector<uint32_t>{1, 0, 0}));
  EXPECT_EQ(Choose(&planner, rates, 6), (std::vector<uint32_t>{2, 1, 0}));
}

TEST(VerificationPlannerTest, InterpolatesAndExtrapolates) {
  VerificationPlanner planner({{4, absl::Microseconds(10)},
                               {8, absl::Microseconds(20)},
                               {16, absl::Microseconds(28)}},
                              4);
  const std::vector<std::pair<uint32_t, double>> expected = {
      {0, 10}, {1, 10},  {4, 10},  {6, 15},  {8, 20},
      {9, 21}, {16, 28}, {17, 29}, {24, 36}, {100, 112}};
  for (const auto& [rows, micros] : expected) {
    EXPECT_NEAR(absl::ToDoubleMicroseconds(planner.PredictedTime(rows)), micros,
                1e-6)
        << rows;
  }
}

TEST(VerificationPlannerTest, ACurveThatFallsIsNotExtrapolatedBelowZero) {
  VerificationPlanner planner(
      {{1, absl::Microseconds(10)}, {2, absl::Microseconds(1)}}, 64);
  EXPECT_EQ(planner.PredictedTime(100), absl::Microseconds(1));
  VerificationPlanner one({{1, absl::Microseconds(10)}}, 64);
  EXPECT_EQ(one.PredictedTime(100), absl::Microseconds(10));
}

TEST(VerificationPlannerTest, CorrectionConvergesToWhatStepsTake) {
  // Contexts grew: rows became five times as dear; and every fourth step is
  // disturbed.
  VerificationPlanner planner(LinearCurve(100, 2), 16);
  std::mt19937_64 random(1);
  const auto truth = [](uint32_t rows) { return 100 + 10.0 * rows; };
  for (int step = 0; step < 2000; ++step) {
    const uint32_t rows = 1 + random() % 96;
    const double noise = 0.99 + static_cast<double>(random() % 21) / 1000;
    const double disturbed = step % 4 == 0 ? 20 : 1;
    planner.Observe(rows, absl::Microseconds(truth(rows) * noise * disturbed));
  }
  for (const uint32_t rows : {1u, 4u, 10u, 16u, 40u, 64u, 80u, 96u}) {
    EXPECT_NEAR(absl::ToDoubleMicroseconds(planner.PredictedTime(rows)),
                truth(rows), truth(rows) * 0.1)
        << rows;
  }
}

struct Machine {
  double fixed, each;  // Microseconds of a step, and of a row.
  double Time(uint32_t rows) const { return fixed + rows * each; }
};

// Tokens over time, over the best there is, with four sequences for ever:
// nothing but the planner's own choices shows it other rows. Times vary by 5 %.
double Efficiency(VerificationPlanner* planner, const Machine& truth) {
  constexpr uint32_t kStart = 1000, kEnd = kMemory + 2000;
  const std::vector<DraftRates> rates(4, Drafts({0.7f, 0.6f, 0.5f, 0.5f}));
  double best = 0;
  ForEachAllocation(rates, [&](const std::vector<uint32_t>& verify) {
    best = std::max(best,
                    ExpectedTokens(rates, verify) / truth.Time(Rows(verify)));
  });
  std::mt19937 random(1);
  double tokens = 0, time = 0;
  for (uint32_t step = 0; step < kEnd; ++step) {
    const std::vector<uint32_t> verify = Choose(planner, rates);
    const uint32_t rows = Rows(verify);
    const double noise = 0.95 + static_cast<double>(random() % 101) / 1000;
    planner->Observe(rows, absl::Microseconds(truth.Time(rows) * noise));
    if (step < kStart) continue;
    tokens += ExpectedTokens(rates, verify);
    time += truth.Time(rows);
  }
  return tokens / time / best;
}

TEST(VerificationPlannerTest, FindsTheRightRowsThoughTheCurveIsWrong) {
  for (const Machine& measured : {Machine{100, 10}, {1, 300}, {3000, 0.1}}) {
    for (const double fixed : {1, 100, 3000}) {
      for (const double each : {0.1, 10.0, 300.0}) {
        VerificationPlanner planner(LinearCurve(measured.fixed, measured.each),
                                    4);
        EXPECT_GT(Efficiency(&planner, {fixed, each}), 0.98)
            << measured.fixed << " + rows * " << measured.each << " measured, "
            << fixed << " + rows * " << each << " true";
      }
    }
  }
}

TEST(VerificationPlannerTest, UnseenRowsGetTheLeastTimeThatTheyCanHave) {
  // At 16 rows 264 for 132 microseconds.
  VerificationPlanner planner(LinearCurve(100, 2), 16);
  for (uint32_t i = 0; i < kMinSamples; ++i) {
    planner.Observe(16, absl::Microseconds(264));
  }
  const std::vector<std::pair<uint32_t, double>> expected = {
      {1, 102},  // Half of the curve's shape; by rows it would be 264 / 16.
      {8, 132},  // By rows; half of the shape is 116.
      {16, 264},
      {64, 264},
      {96, 292}};  // Rows are free; half of the shape.
  for (const auto& [rows, micros] : expected) {
    EXPECT_NEAR(absl::ToDoubleMicroseconds(planner.PredictedTime(rows)), micros,
                1e-3)
        << rows;
  }
}

TEST(VerificationPlannerTest, UnseenRowsBetweenSeenOnesAreBoundedByBoth) {
  VerificationPlanner planner(LinearCurve(100, 0), 16);
  for (uint32_t i = 0; i < kMinSamples; ++i) {
    planner.Observe(4, absl::Microseconds(100));
    planner.Observe(64, absl::Microseconds(400));
  }
  for (const auto& [rows, micros] : std::vector<std::pair<uint32_t, double>>{
           {8, 200}, {32, 200}, {40, 250}, {64, 400}}) {
    EXPECT_NEAR(absl::ToDoubleMicroseconds(planner.PredictedTime(rows)), micros,
                1e-3)
        << rows;
  }
}

TEST(VerificationPlannerTest, FewTimesCorrectNothing) {
  VerificationPlanner planner(LinearCurve(100, 2), 16);
  for (uint32_t i = 0; i + 1 < kMinSamples; ++i) {
    planner.Observe(4, absl::Seconds(1));
    EXPECT_EQ(planner.PredictedTime(4), absl::Microseconds(108));
  }
  planner.Observe(4, absl::Seconds(1));
  EXPECT_GT(planner.PredictedTime(4), absl::Milliseconds(999));
}

TEST(VerificationPlannerTest, ATimeThatWasBadOnceIsTriedAgain) {
  VerificationPlanner planner(LinearCurve(100, 1), 4);
  const std::vector<DraftRates> rates(4, Drafts({0.9f, 0.9f, 0.9f}));
  ASSERT_EQ(Rows(Choose(&planner, rates)), 16u);
  for (uint32_t i = 0; i < kMinSamples; ++i) {
    planner.Observe(16, absl::Milliseconds(50));
  }
  for (uint32_t i = 0; i < kMinSamples; ++i) {
    planner.Observe(4, absl::Microseconds(104));
  }
  ASSERT_LT(Rows(Choose(&planner, rates)), 10u);
  uint32_t steps = 0;
  for (; Rows(Choose(&planner, rates)) < 16 && steps <= 2 * kMemory; ++steps) {
    const uint32_t rows = Rows(Choose(&planner, rates));
    planner.Observe(rows, absl::Microseconds(100 + rows));
  }
  EXPECT_GT(steps, kMemory / 2);
  EXPECT_LE(steps, kMemory);
}

TEST(VerificationPlannerTest, TimesThatAreNotTimesCorrectNothing) {
  VerificationPlanner planner(LinearCurve(100, 2), 16);
  for (int i = 0; i < 100; ++i) {
    planner.Observe(4, absl::ZeroDuration());
    planner.Observe(4, -absl::Seconds(1));
    planner.Observe(4, absl::InfiniteDuration());
    planner.Observe(4, -absl::InfiniteDuration());
  }
  EXPECT_EQ(planner.PredictedTime(4), absl::Microseconds(108));
}

TEST(VerificationPlannerTest, HostileCurvesGiveTimesAboveZero) {
  const absl::Duration hostile[] = {absl::ZeroDuration(), -absl::Seconds(1),
                                    absl::InfiniteDuration(),
                                    -absl::InfiniteDuration()};
  for (const absl::Duration first : hostile) {
    for (const absl::Duration second : hostile) {
      VerificationPlanner planner({{0, first}, {4, second}}, 4);
      for (int i = 0; i < 20; ++i) planner.Observe(0, absl::Nanoseconds(1));
      for (int i = 0; i < 20; ++i) planner.Observe(9, absl::Hours(100));
      for (const uint32_t rows : {0u, 2u, 4u, 24u}) {
        EXPECT_GT(planner.PredictedTime(rows), absl::ZeroDuration());
        EXPECT_LT(planner.PredictedTime(rows), absl::InfiniteDuration());
      }
      EXPECT_LE(Rows(Choose(&planner, {Drafts({0.5f}), Drafts({0.5f})})), 4u);
    }
  }
}

TEST(VerificationPlannerTest, TimesOfZeroAreAllAlikeSoDraftsAreFree) {
  VerificationPlanner planner(
      {{1, absl::ZeroDuration()}, {8, absl::ZeroDuration()}}, 4);
  EXPECT_EQ(Choose(&planner, {Drafts({0.1f, 0.1f}), Drafts({0, 1})}),
            (std::vector<uint32_t>{2, 0}));
}

TEST(VerificationPlannerTest, ConfidencesOutsideZeroToOneAreBrought) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInf = std::numeric_limits<float>::infinity();
  VerificationPlanner planner(LinearCurve(1000, 0.1), 8);
  EXPECT_EQ(Choose(&planner,
                   {Drafts({kNan, 1}), Drafts({0.5f, kNan, 1}), Drafts({-3, 1}),
                    Drafts({kInf, 7}), Drafts({-0.0f}), Drafts({-kInf})}),
            (std::vector<uint32_t>{0, 1, 0, 2, 0, 0}));
  EXPECT_EQ(planner.CalibratedConfidence(0, kNan), 0);
  EXPECT_EQ(planner.CalibratedConfidence(0, kInf), 1);
  planner.ObserveAcceptance(0, kNan, false);
  EXPECT_EQ(planner.CalibratedConfidence(0, 0.5f), 0.5f);
}

TEST(VerificationPlannerTest, ConfidencesAreCalibratedByAcceptance) {
  VerificationPlanner planner(LinearCurve(10, 10), 4);
  const std::vector<DraftRates> rates = {Drafts({0.8f})};
  EXPECT_EQ(planner.CalibratedConfidence(1, 0.8f), 0.8f);
  EXPECT_EQ(Choose(&planner, rates), (std::vector<uint32_t>{1}));
  for (int i = 0; i < 4000; ++i) {
    planner.ObserveAcceptance(0, 0.8f, i % 5 < 2);  // 0.4 of them.
    planner.ObserveAcceptance(1, 0.5f, i % 4 < 3);  // 0.75.
    planner.ObserveAcceptance(2, 1, i % 10 < 3);    // Unknown; 0.3.
    planner.ObserveAcceptance(3, 0.8f, i % 5 < 4);  // As predicted.
  }
  EXPECT_NEAR(planner.CalibratedConfidence(0, 0.8f), 0.4f, 0.01f);
  EXPECT_NEAR(planner.CalibratedConfidence(1, 0.5f), 0.75f, 0.01f);
  EXPECT_EQ(planner.CalibratedConfidence(1, 0.9f), 1.0f);
  EXPECT_NEAR(planner.CalibratedConfidence(2, 1), 0.3f, 0.01f);
  EXPECT_NEAR(planner.CalibratedConfidence(3, 0.8f), 0.8f, 0.01f);
  EXPECT_EQ(planner.CalibratedConfidence(4, 0.8f), 0.8f);
  EXPECT_EQ(Choose(&planner, rates), (std::vector<uint32_t>{0}));
}

TEST(VerificationPlannerTest, CalibrationIsForgotten) {
  VerificationPlanner planner({}, 4);
  for (int i = 0; i < 1000; ++i) planner.ObserveAcceptance(0, 1, false);
  EXPECT_LT(planner.CalibratedConfidence(0, 1), 0.02f);
  for (uint32_t i = 0; i < 8 * kMemory; ++i) {
    planner.Observe(1, absl::Milliseconds(1));
  }
  EXPECT_GT(planner.CalibratedConfidence(0, 1), 0.95f);
}

TEST(VerificationPlannerTest, DoesNotAllocateAfterConstruction) {
  VerificationPlanner planner(LinearCurve(1000, 1), 256);
  const std::vector<DraftRates> rates(256,
                                      Drafts({0.9f, 0.8f, 0.7f, 0.6f, 0.5f}));
  std::vector<uint32_t> verify(rates.size());
  const uint64_t before = num_allocations;
  for (uint32_t i = 0; i < 100; ++i) {
    planner.Choose(rates, kNoRowLimit, verify);
    planner.Observe(256 + 10 * i, absl::Microseconds(1000 + 10 * i));
    planner.ObserveAcceptance(i % 5, 0.5f, i % 2 == 0);
  }
  EXPECT_EQ(num_allocations, before);
}

TEST(VerificationPlannerTest, BugsOfTheCallerDie) {
  const std::vector<StepCurvePoint> twice = {{2, absl::Microseconds(1)},
                                             {2, absl::Microseconds(2)}};
  EXPECT_DEATH(VerificationPlanner(twice, 4), "point.rows");
  VerificationPlanner planner({}, 1);
  EXPECT_DEATH(Choose(&planner, {Drafts({}), Drafts({})}), "max_sequences");
  DraftRates many;
  many.num_drafts = kMaxDraftTokens + 1;
  EXPECT_DEATH(Choose(&planner, {many}), "num_drafts");
  EXPECT_DEATH(planner.ObserveAcceptance(kMaxDraftTokens, 1, true),
               "draft_index");
}

}  // namespace
}  // namespace baton
