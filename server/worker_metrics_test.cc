#include "server/worker_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <prometheus/text_serializer.h>

namespace baton {
namespace {

using ::testing::HasSubstr;

class WorkerMetricsTest : public ::testing::Test {
 protected:
  std::string Text() const {
    return prometheus::TextSerializer().Serialize(registry_.Collect());
  }

  prometheus::Registry registry_;
  WorkerMetrics metrics_{&registry_, "decode"};
};

TEST_F(WorkerMetricsTest, AnEndedRequestIsCountedByOutcomeWithItsTokens) {
  metrics_.OnRequestEnd({.status = absl::OkStatus(),
                         .prompt_tokens = 12,
                         .decode_cached_tokens = 4,
                         .output_tokens = 8,
                         .queue_time = absl::Milliseconds(2),
                         .prefill_time = absl::ZeroDuration(),
                         .transfer_time = absl::Milliseconds(3),
                         .transfer_bytes = 4096});
  const std::string text = Text();
  for (const char* line :
       {"baton_requests_total{role=\"decode\",outcome=\"ok\"} 1",
        "baton_prompt_tokens_total{role=\"decode\"} 12",
        "baton_cached_tokens_total{role=\"decode\"} 4",
        "baton_prompt_tokens_by_source_total{role=\"decode\",source=\"local_"
        "compute\"} 0",
        "baton_prompt_tokens_by_source_total{role=\"decode\",source=\"prefix_"
        "cache\"} 4",
        "baton_prompt_tokens_by_source_total{role=\"decode\",source=\"kv_"
        "transfer\"} 8",
        "baton_queue_time_seconds_count{role=\"decode\"} 1",
        "baton_kv_transfer_bytes_total{role=\"decode\"} 4096",
        "baton_kv_transfer_seconds_count{role=\"decode\"} 1"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
}

TEST_F(WorkerMetricsTest, AnAbortedRequestIsCountedByWhatItWasDoing) {
  GenerationOutcome outcome;
  outcome.prompt_tokens = 12;
  outcome.ended_in = RequestActivity::kTransfer;
  metrics_.OnRequestEnd(outcome);
  for (const char* phase : {"queued", "prefill", "transfer", "decode"}) {
    EXPECT_THAT(Text(),
                HasSubstr(std::string("baton_aborted_requests_total{role="
                                      "\"decode\",phase=\"") +
                          phase + "\"} 0"));
  }
  outcome.status = absl::CancelledError("aborted");
  metrics_.OnRequestEnd(outcome);
  outcome.status = absl::DeadlineExceededError("late");
  metrics_.OnRequestEnd(outcome);
  EXPECT_THAT(Text(), HasSubstr("baton_aborted_requests_total{role=\"decode\","
                                "phase=\"transfer\"} 2"));
}

TEST_F(WorkerMetricsTest, AbortsAreCountedByTimeAndStepsUntilBlocksAreFree) {
  metrics_.OnAbort({.time = absl::Milliseconds(2), .steps = 0});
  metrics_.OnAbort({.time = absl::Milliseconds(3), .steps = 2});
  const std::string text = Text();
  for (const char* line :
       {"baton_abort_to_free_seconds_count{role=\"decode\"} 2",
        "baton_abort_to_free_seconds_sum{role=\"decode\"} 0.005",
        "baton_abort_to_free_steps_bucket{role=\"decode\",le=\"0\"} 1",
        "baton_abort_to_free_steps_bucket{role=\"decode\",le=\"1\"} 1",
        "baton_abort_to_free_steps_bucket{role=\"decode\",le=\"2\"} 2"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
}

TEST_F(WorkerMetricsTest, ARefusedRequestHasAnOutcomeAlone) {
  GenerationOutcome outcome;
  outcome.status = absl::ResourceExhaustedError("full");
  metrics_.OnRequestEnd(outcome);
  EXPECT_THAT(
      Text(),
      HasSubstr(
          "baton_requests_total{role=\"decode\",outcome=\"resource_exhausted\"}"
          " 1"));
  EXPECT_THAT(Text(),
              HasSubstr("baton_queue_time_seconds_count{role=\"decode\"}"
                        " 0"));
}

TEST_F(WorkerMetricsTest, TheBlocksStatesAddUpAndTheGatewaysGaugesAreOneEach) {
  metrics_.SetLoad({.running_requests = 3,
                    .waiting_requests = 2,
                    .importing_requests = 2,
                    .exporting_requests = 1,
                    .paused_requests = 4,
                    .total_blocks = 20,
                    .free_blocks = 5,
                    .exported_blocks = 4,
                    .importing_blocks = 3,
                    .deferred_blocks = 2});
  const std::string text = Text();
  for (const char* line :
       {"baton_kv_blocks{role=\"decode\",state=\"free\"} 5",
        "baton_kv_blocks{role=\"decode\",state=\"owned\"} 6",
        "baton_kv_blocks{role=\"decode\",state=\"exported\"} 4",
        "baton_kv_blocks{role=\"decode\",state=\"importing\"} 3",
        "baton_kv_blocks{role=\"decode\",state=\"deferred\"} 2",
        "baton_running_requests{role=\"decode\"} 3",
        "baton_waiting_requests{role=\"decode\"} 2",
        "baton_paused_requests{role=\"decode\"} 4",
        "baton_kv_transfers{role=\"decode\",direction=\"import\"} 2",
        "baton_kv_transfers{role=\"decode\",direction=\"export\"} 1",
        "baton_kv_utilization_ratio{role=\"decode\"} 0.75"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
}

TEST_F(WorkerMetricsTest, APromptComputedHereIsCountedWithoutItsResumedTokens) {
  GenerationOutcome outcome;
  outcome.prompt_tokens = 100;
  outcome.cached_tokens = 64;
  metrics_.OnRequestEnd(outcome);
  outcome.prompt_tokens = 10;
  metrics_.OnRequestEnd(outcome);
  outcome.status = absl::CancelledError("aborted");
  metrics_.OnRequestEnd(outcome);
  const std::string text = Text();
  const std::string series =
      "baton_prompt_tokens_by_source_total{role=\"decode\",source=";
  EXPECT_THAT(text, HasSubstr(series + "\"local_compute\"} 36"));
  EXPECT_THAT(text, HasSubstr(series + "\"prefix_cache\"} 74"));
  EXPECT_THAT(text, HasSubstr(series + "\"kv_transfer\"} 0"));
}

TEST_F(WorkerMetricsTest, ThePrefixCachesCountersFollowTheLoadAndNeverFall) {
  EngineLoad load = {
      .total_blocks = 20,
      .free_blocks = 15,
      .cached_blocks = 7,
      .exported_blocks = 6,
      .prefix_cache = {
          .queried_tokens = 300, .hit_tokens = 128, .evicted_blocks = 2}};
  metrics_.SetLoad(load);
  load.prefix_cache = {.queried_tokens = 299, .hit_tokens = 64};
  metrics_.SetLoad(load);
  const std::string text = Text();
  for (const char* line :
       {"baton_prefix_cache_blocks{role=\"decode\"} 7",
        "baton_prefix_cache_queried_tokens_total{role=\"decode\"} 300",
        "baton_prefix_cache_hit_tokens_total{role=\"decode\"} 128",
        "baton_prefix_cache_evicted_blocks_total{role=\"decode\"} 2",
        // Two exports of five blocks share one of them.
        "baton_kv_blocks{role=\"decode\",state=\"owned\"} 0"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
}

TEST_F(WorkerMetricsTest, TransfersFollowTheAgentsCountersAndNeverFall) {
  metrics_.SetTransfers(
      {.malformed_messages = 3, .ignored_messages = 4, .damaged_blocks = 1});
  metrics_.SetTransfers({.malformed_messages = 5, .ignored_messages = 4});
  metrics_.SetTransfers({.malformed_messages = 2, .ignored_messages = 4});
  const std::string text = Text();
  const std::string series =
      "baton_kv_transfer_dropped_messages_total{role=\"decode\",reason=";
  EXPECT_THAT(text, HasSubstr(series + "\"malformed\"} 5"));
  EXPECT_THAT(text, HasSubstr(series + "\"ignored\"} 4"));
  EXPECT_THAT(text,
              HasSubstr("baton_kv_damaged_blocks_total{role=\"decode\"} 1"));
}

}  // namespace
}  // namespace baton
