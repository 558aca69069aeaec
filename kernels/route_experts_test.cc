#include "kernels/route_experts.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "gtest/gtest.h"
#include "kernels/reference/isa_test.h"
#include "kernels/reference/random_values.h"
#include "kernels/reference/route_reference.h"
#include "kernels/thread_pool.h"

namespace baton {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Routed {
  std::vector<int32_t> experts;
  std::vector<float> weights;
};

Routed Route(const CpuContext& context, const RoutingOptions& options,
             const std::vector<float>& logits, int tokens = 1) {
  const size_t n = static_cast<size_t>(tokens * options.top_k);
  Routed routed = {std::vector<int32_t>(n), std::vector<float>(n)};
  RouteExperts(context, options,
               Dense<const float>(logits.data(), tokens,
                                  static_cast<int>(logits.size()) / tokens),
               Dense(routed.experts.data(), tokens, options.top_k),
               Dense(routed.weights.data(), tokens, options.top_k));
  return routed;
}

// Options of a released model or of no model; `bias` outlives them.
RoutingOptions RandomOptions(RandomValues& random, std::vector<float>* bias,
                             int* num_experts) {
  const int group_counts[] = {1, 2, 3, 8};
  const int groups = group_counts[random.Below(4)];
  const int size = 1 + random.Below(random.Below(2) == 0 ? 4 : 40);
  const int kept = 1 + random.Below(groups);
  *num_experts = groups * size;
  *bias = random.Normals(static_cast<size_t>(*num_experts), 0.7f);
  const int methods = random.Below(3);
  RoutingOptions options = {
      .method = static_cast<RoutingMethod>(methods),
      .scoring = random.Below(2) == 0 ? ScoringFunction::kSigmoid
                                      : ScoringFunction::kSoftmax,
      .num_groups = groups,
      .num_kept_groups = kept,
      .top_k = 1 + random.Below(std::min(10, kept * size)),
      .normalize = random.Below(2) == 0,
      .scaling_factor = 2.5f,
  };
  if (options.method == RoutingMethod::kNoAuxTc) options.bias = bias->data();
  return options;
}

class RouteExpertsTest : public IsaTest {};

TEST_P(RouteExpertsTest, AgreesWithTheReferenceWhereItIsSafelyDecided) {
  RandomValues random(1);
  int decided = 0;
  for (int i = 0; i < 2000; ++i) {
    std::vector<float> bias;
    int num_experts = 0;
    const RoutingOptions options = RandomOptions(random, &bias, &num_experts);
    const std::vector<float> logits =
        random.Normals(static_cast<size_t>(num_experts), 2);
    const ReferenceRoute expected = ReferenceRouteExperts(options, logits);
    if (expected.margin < 1e-6) continue;
    ++decided;
    const Routed routed = Route(context(), options, logits);
    ASSERT_EQ(routed.experts, expected.experts) << "case " << i;
    for (size_t k = 0; k < expected.weights.size(); ++k) {
      EXPECT_NEAR(routed.weights[k], expected.weights[k],
                  2e-6 * expected.weights[k]);
    }
  }
  EXPECT_GT(decided, 1500);
}

TEST_P(RouteExpertsTest, TiesGoToTheLowerExpertAndTheLowerGroup) {
  const std::vector<float> logits(64, 0.25f);
  const std::vector<float> bias(64, 0);
  const RoutingOptions options = {.method = RoutingMethod::kNoAuxTc,
                                  .scoring = ScoringFunction::kSigmoid,
                                  .num_groups = 8,
                                  .num_kept_groups = 2,
                                  .top_k = 8,
                                  .normalize = true,
                                  .bias = bias.data()};
  const Routed routed = Route(context(), options, logits);
  for (int k = 0; k < 8; ++k) {
    EXPECT_EQ(routed.experts[static_cast<size_t>(k)], k);
    EXPECT_EQ(routed.weights[static_cast<size_t>(k)], 0.125f);
  }
}

TEST_P(RouteExpertsTest, AMaskedGroupLosesToNegativeScores) {
  // Group 0 keeps the sum of its two largest up; its third expert is so low
  // that a mask of zero, instead of minus infinity, would let group 1 in.
  const std::vector<float> logits(8, 0);
  const std::vector<float> bias = {-0.6f, -0.6f, -5,    -6,
                                   -0.7f, -0.7f, -0.7f, -0.7f};
  const RoutingOptions options = {.method = RoutingMethod::kNoAuxTc,
                                  .scoring = ScoringFunction::kSigmoid,
                                  .num_groups = 2,
                                  .num_kept_groups = 1,
                                  .top_k = 4,
                                  .bias = bias.data()};
  EXPECT_EQ(Route(context(), options, logits).experts,
            (std::vector<int32_t>{0, 1, 2, 3}));
}

TEST_P(RouteExpertsTest, GroupsAreRankedByTheirMaximumOrTheSumOfTwo) {
  const std::vector<float> logits = {3, -9, -9, 2, 2, -9};
  const std::vector<float> bias(6, 0);
  RoutingOptions options = {.method = RoutingMethod::kGroupLimitedGreedy,
                            .scoring = ScoringFunction::kSigmoid,
                            .num_groups = 2,
                            .num_kept_groups = 1,
                            .top_k = 1};
  EXPECT_EQ(Route(context(), options, logits).experts[0], 0);
  options.method = RoutingMethod::kNoAuxTc;
  options.bias = bias.data();
  EXPECT_EQ(Route(context(), options, logits).experts[0], 3);
}

TEST_P(RouteExpertsTest, TheBiasSelectsButDoesNotWeigh) {
  const std::vector<float> logits = {2, 0};
  const std::vector<float> bias = {0, 10};
  const Routed routed = Route(context(),
                              {.method = RoutingMethod::kNoAuxTc,
                               .scoring = ScoringFunction::kSigmoid,
                               .top_k = 1,
                               .scaling_factor = 2,
                               .bias = bias.data()},
                              logits);
  EXPECT_EQ(routed.experts[0], 1);
  EXPECT_EQ(routed.weights[0], 1.0f);
}

TEST_P(RouteExpertsTest, NansStillGiveDistinctExpertsInRange) {
  const std::vector<float> odd = {std::nanf(""), -std::nanf(""), kInfinity,
                                  -kInfinity};
  for (float value : odd) {
    for (ScoringFunction scoring :
         {ScoringFunction::kSoftmax, ScoringFunction::kSigmoid}) {
      std::vector<float> logits(24, value);
      logits[3] = 1;
      std::vector<int32_t> experts =
          Route(context(),
                {.method = RoutingMethod::kGroupLimitedGreedy,
                 .scoring = scoring,
                 .num_groups = 4,
                 .num_kept_groups = 2,
                 .top_k = 12},
                logits)
              .experts;
      std::sort(experts.begin(), experts.end());
      EXPECT_EQ(std::unique(experts.begin(), experts.end()), experts.end());
      EXPECT_GE(experts.front(), 0);
      EXPECT_LT(experts.back(), 24);
    }
  }
}

TEST_P(RouteExpertsTest, AllWidthsThreadCountsAndBatchesGiveTheSameBits) {
  RandomValues random(2);
  for (int i = 0; i < 60; ++i) {
    std::vector<float> bias;
    int num_experts = 0;
    const RoutingOptions options = RandomOptions(random, &bias, &num_experts);
    const int tokens = 1 + random.Below(600);
    const std::vector<float> logits =
        random.Normals(static_cast<size_t>(num_experts * tokens), 2);
    const Routed expected = Route({}, options, logits, tokens);
    ThreadPool pool({.num_threads = 3});
    for (const CpuContext& c :
         {context(), CpuContext{.isa = GetParam(), .threads = &pool}}) {
      const Routed routed = Route(c, options, logits, tokens);
      EXPECT_EQ(routed.experts, expected.experts);
      EXPECT_EQ(BitsOfValues(routed.weights), BitsOfValues(expected.weights));
    }
    const int t = random.Below(tokens);
    const Routed alone = Route(context(), options,
                               {logits.begin() + t * num_experts,
                                logits.begin() + (t + 1) * num_experts});
    for (size_t k = 0; k < alone.experts.size(); ++k) {
      const size_t at = static_cast<size_t>(t * options.top_k) + k;
      EXPECT_EQ(alone.experts[k], expected.experts[at]);
      EXPECT_EQ(alone.weights[k], expected.weights[at]);
    }
  }
}

// Of four terms, in order; the values are `stride` apart.
float FmaSum(float sum, const float* weights, const float* values,
             ptrdiff_t stride) {
  for (int k = 0; k < 4; ++k) {
    sum = std::fma(weights[k], values[k * stride], sum);
  }
  return sum;
}

TEST_P(RouteExpertsTest, CombineAddsInTopKOrderWithOneFmaATerm) {
  RandomValues random(3);
  for (int cols : {1, 16, 33, 192}) {
    const std::vector<float> shared =
        random.Normals(static_cast<size_t>(3 * cols));
    const std::vector<float> routed =
        random.Normals(static_cast<size_t>(3 * 4 * cols));
    const std::vector<float> weights = random.Normals(12);
    std::vector<float> y = shared;
    CombineExperts(context(), Dense<const float>(y.data(), 3, cols),
                   Dense<const float>(routed.data(), 12, cols),
                   Dense<const float>(weights.data(), 3, 4),
                   Dense(y.data(), 3, cols));
    for (int t = 0; t < 3; ++t) {
      for (int i = 0; i < cols; ++i) {
        const ptrdiff_t row = ptrdiff_t{t} * 4;
        EXPECT_EQ(
            y[static_cast<size_t>(t * cols + i)],
            FmaSum(shared[static_cast<size_t>(t * cols + i)],
                   weights.data() + row, routed.data() + row * cols + i, cols));
      }
    }
  }
}

INSTANTIATE_ISA_TEST(RouteExpertsTest);

}  // namespace
}  // namespace baton
