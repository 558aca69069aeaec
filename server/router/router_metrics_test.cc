#include "server/router/router_metrics.h"

#include <prometheus/text_serializer.h>

#include <sstream>
#include <string>

#include "gtest/gtest.h"

namespace baton {
namespace {

TEST(RouterMetricsTest, StartsWithEverySeriesThatADashboardAsksFor) {
  prometheus::Registry registry;
  RouterMetrics metrics(&registry);
  metrics.CountRequest(absl::StatusCode::kCancelled);
  metrics.CountRequest(absl::StatusCode::kDataLoss);
  metrics.CountRetry("prefill_lost");
  metrics.CountResume("decode_lost", 30);
  metrics.CountResume("decode_lost", 12);
  metrics.CountRetryRefused(/*resumes=*/true);
  metrics.CountEjection("ratio");
  metrics.SetWorkers("decode", {1, 2, 3, 4, 5});
  std::ostringstream out;
  prometheus::TextSerializer().Serialize(out, registry.Collect());
  const std::string text = out.str();
  for (const char* series :
       {"baton_requests_total{role=\"router\",outcome=\"cancelled\"} 1",
        "baton_requests_total{role=\"router\",outcome=\"data_loss\"} 1",
        "baton_router_retries_total{role=\"router\",reason=\"prefill_lost\"} 1",
        "baton_router_resumes_total{role=\"router\",reason=\"decode_lost\"} 2",
        "baton_router_recomputed_tokens_total{role=\"router\"} 42",
        "baton_router_retries_refused_total{role=\"router\",kind=\"resume\"} 1",
        "baton_router_ejections_total{role=\"router\",reason=\"ratio\"} 1",
        "baton_router_ejected_workers{role=\"router\"} 0",
        "baton_router_workers{role=\"router\",pool=\"decode\",state="
        "\"unknown\"} 1",
        "baton_router_workers{role=\"router\",pool=\"decode\",state="
        "\"refused\"} 5",
        "baton_router_workers{role=\"router\",pool=\"prefill\",state="
        "\"ready\"} 0",
        "baton_router_workers{role=\"router\",pool=\"unified\",state="
        "\"ready\"} 0",
        "baton_time_to_first_token_seconds_count{role=\"router\"} 0",
        "baton_inter_token_latency_seconds_count{role=\"router\"} 0",
        "baton_queue_time_seconds_count{role=\"router\"} 0",
        "baton_prompt_tokens_total{role=\"router\"} 0",
        "baton_generated_tokens_total{role=\"router\"} 0",
        "baton_cached_tokens_total{role=\"router\"} 0",
        "baton_running_requests{role=\"router\"} 0",
        "baton_waiting_requests{role=\"router\"} 0"}) {
    EXPECT_NE(text.find(series), std::string::npos) << series;
  }
}

TEST(RouterMetricsTest, CountersAreThereBeforeTheirFirstEvent) {
  prometheus::Registry registry;
  const RouterMetrics metrics(&registry);
  std::ostringstream out;
  prometheus::TextSerializer().Serialize(out, registry.Collect());
  for (const char* series :
       {"retries_total{role=\"router\",reason=\"busy\"} 0",
        "retries_total{role=\"router\",reason=\"prompt_lost\"} 0",
        "resumes_total{role=\"router\",reason=\"decode_lost\"} 0",
        "retries_refused_total{role=\"router\",kind=\"retry\"} 0",
        "retries_refused_total{role=\"router\",kind=\"resume\"} 0",
        "ejections_total{role=\"router\",reason=\"in_a_row\"} 0",
        "ejections_total{role=\"router\",reason=\"ratio\"} 0",
        "ejections_total{role=\"router\",reason=\"trial\"} 0",
        "deadline_refusals_total{role=\"router\",reason=\"QUEUE_TOO_LONG\"} 0",
        "deadline_refusals_total{role=\"router\",reason=\"PROMPT_TOO_LONG\"} "
        "0"}) {
    EXPECT_NE(out.str().find(std::string("baton_router_") + series),
              std::string::npos)
        << series;
  }
}

}  // namespace
}  // namespace baton
