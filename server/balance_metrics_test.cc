#include "server/balance_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <prometheus/text_serializer.h>

#include <string>

namespace baton {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(BalanceMetricsTest, PlansMovesAndTheAgeOfThePlacement) {
  prometheus::Registry registry;
  BalanceMetrics metrics(&registry, "decode");
  const absl::Time start = absl::FromUnixSeconds(100);
  metrics.OnPlacement(0, start);
  metrics.OnStep(1.12);
  metrics.OnPlan({.present_ratios = {1.5, 1.25}, .planned_ratios = {1, 1.25}},
                 absl::Milliseconds(250));
  metrics.OnPlan({.present_ratios = {1.75, 1}, .planned_ratios = {1.5, 1}},
                 absl::Milliseconds(250));
  metrics.Add({.balanced_plans = 1,
               .moving_plans = 2,
               .abandoned_plans = 3,
               .skipped_plans = 4,
               .moved_layers = 5,
               .abandoned_layers = 6,
               .loaded_experts = 7,
               .failed_batches = 8,
               .dropped_messages = 9},
              /*expert_bytes=*/1000);
  metrics.OnPlacement(4, start + absl::Seconds(3));
  metrics.SetAge(start + absl::Seconds(5));
  const std::string text =
      prometheus::TextSerializer().Serialize(registry.Collect());
  for (const char* line :
       {"baton_expert_step_load_ratio_bucket{role=\"decode\",le=\"1.1\"} 0",
        "baton_expert_step_load_ratio_bucket{role=\"decode\",le=\"1.15\"} 1",
        "_load_ratio{role=\"decode\",layer=\"0\",state=\"present\"} 1.75",
        "_load_ratio{role=\"decode\",layer=\"0\",state=\"planned\"} 1.5",
        "baton_expert_plan_seconds_total{role=\"decode\"} 0.5",
        "baton_expert_plans_total{role=\"decode\",outcome=\"balanced\"} 1",
        "baton_expert_plans_total{role=\"decode\",outcome=\"moving\"} 2",
        "baton_expert_plans_total{role=\"decode\",outcome=\"abandoned\"} 3",
        "baton_expert_plans_total{role=\"decode\",outcome=\"skipped\"} 4",
        "baton_expert_moves_total{role=\"decode\",outcome=\"moved\"} 5",
        "baton_expert_moves_total{role=\"decode\",outcome=\"abandoned\"} 6",
        "baton_expert_loads_total{role=\"decode\"} 7",
        "baton_expert_loaded_bytes_total{role=\"decode\"} 7000",
        "baton_expert_load_failures_total{role=\"decode\"} 8",
        "baton_expert_dropped_messages_total{role=\"decode\"} 9",
        "baton_expert_placement_version{role=\"decode\"} 4",
        "baton_expert_placement_age_seconds{role=\"decode\"} 2"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
}

TEST(BalanceMetricsTest, GetLoadTellsTheMeanStepsRatio) {
  prometheus::Registry registry;
  BalanceMetrics metrics(&registry, "decode");
  metrics.OnStep(1.25);
  metrics.OnStep(1.5);
  v1::GroupLoad load;
  metrics.AddTo(&load);
  EXPECT_EQ(load.expert_load_steps(), 2u);
  EXPECT_EQ(load.expert_load_ratio_sum(), 2.75);
}

TEST(BalanceMetricsTest, WithoutAPlacementThereIsNoAge) {
  prometheus::Registry registry;
  BalanceMetrics metrics(&registry, "decode");
  metrics.SetAge(absl::FromUnixSeconds(100));
  const std::string text =
      prometheus::TextSerializer().Serialize(registry.Collect());
  EXPECT_THAT(text,
              HasSubstr("baton_expert_placement_age_seconds{role=\"decode\"} "
                        "0"));
  EXPECT_THAT(text, Not(HasSubstr("layer=")));
}

}  // namespace
}  // namespace baton
