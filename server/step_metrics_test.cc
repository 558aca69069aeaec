#include "server/step_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <prometheus/text_serializer.h>

namespace baton {
namespace {

using ::testing::HasSubstr;

TEST(StepMetricsTest, StepsAreCountedWithWhatTheyCostAndGave) {
  prometheus::Registry registry;
  StepMetrics metrics(&registry, "decode");
  metrics.OnStep({.prefill = true,
                  .rows = 12,
                  .sequences = 1,
                  .preemptions = 2,
                  .draws = 1,
                  .tokens = 1,
                  .schedule_time = absl::Milliseconds(250),
                  .commit_time = absl::ZeroDuration(),
                  .device_time = absl::Seconds(2),
                  .device_idle = absl::ZeroDuration()});
  metrics.OnStep({.rows = 4,
                  .sequences = 2,
                  .wasted_rows = 1,
                  .draws = 2,
                  .drafts_made = 6,
                  .drafts_verified = {2, 1},
                  .drafts_accepted = {1},
                  .tokens = 3,
                  .schedule_time = absl::Milliseconds(250),
                  .commit_time = absl::Milliseconds(125),
                  .device_time = absl::Seconds(1),
                  .device_idle = absl::Milliseconds(500)});
  const std::string text =
      prometheus::TextSerializer().Serialize(registry.Collect());
  for (const char* line :
       {"baton_steps_total{role=\"decode\",type=\"prefill\"} 1",
        "baton_steps_total{role=\"decode\",type=\"decode\"} 1",
        "baton_preemptions_total{role=\"decode\"} 2",
        "baton_device_seconds_total{role=\"decode\",state=\"prefill\"} 2",
        "baton_device_seconds_total{role=\"decode\",state=\"idle\"} 0.5",
        "baton_engine_seconds_total{role=\"decode\",part=\"schedule\"} 0.5",
        "baton_engine_seconds_total{role=\"decode\",part=\"commit\"} 0.125",
        "baton_step_rows_total{role=\"decode\",use=\"useful\"} 15",
        "baton_step_rows_total{role=\"decode\",use=\"wasted\"} 1",
        "baton_draws_total{role=\"decode\"} 3",
        "baton_drawn_tokens_total{role=\"decode\"} 4",
        "baton_drafts_proposed_total{role=\"decode\"} 6",
        "baton_drafts_verified_total{role=\"decode\",position=\"2\"} 1",
        "baton_drafts_accepted_total{role=\"decode\",position=\"1\"} 1"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
}

}  // namespace
}  // namespace baton
