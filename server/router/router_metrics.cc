#include "server/router/router_metrics.h"

#include <string>

#include "server/edge/metrics.h"

namespace baton {
namespace {

const prometheus::Labels& RoleLabel() {
  static const auto* const label = new prometheus::Labels{{"role", "router"}};
  return *label;
}

prometheus::Family<prometheus::Counter>& CounterFamily(
    prometheus::Registry* registry, const char* name, const char* help) {
  return prometheus::BuildCounter()
      .Name(name)
      .Help(help)
      .Labels(RoleLabel())
      .Register(*registry);
}

prometheus::Counter& AddCounter(prometheus::Registry* registry,
                                const char* name, const char* help) {
  return CounterFamily(registry, name, help).Add({});
}

prometheus::Gauge& AddGauge(prometheus::Registry* registry, const char* name,
                            const char* help) {
  return prometheus::BuildGauge()
      .Name(name)
      .Help(help)
      .Labels(RoleLabel())
      .Register(*registry)
      .Add({});
}

prometheus::Histogram& AddHistogram(prometheus::Registry* registry,
                                    const char* name, const char* help) {
  return prometheus::BuildHistogram()
      .Name(name)
      .Help(help)
      .Labels(RoleLabel())
      .Register(*registry)
      .Add({}, LatencyBuckets());
}

std::array<prometheus::Gauge*, kNumWorkerStates> AddWorkerGauges(
    prometheus::Registry* registry) {
  prometheus::Family<prometheus::Gauge>& family =
      prometheus::BuildGauge()
          .Name("baton_router_workers")
          .Help("Workers of the static lists, by what they are to the router.")
          .Labels(RoleLabel())
          .Register(*registry);
  std::array<prometheus::Gauge*, kNumWorkerStates> gauges;
  for (int i = 0; i < kNumWorkerStates; ++i) {
    const auto state = static_cast<WorkerState>(i);
    gauges[i] = &family.Add({{"state", std::string(WorkerStateName(state))}});
  }
  return gauges;
}

}  // namespace

RouterMetrics::RouterMetrics(prometheus::Registry* registry)
    : requests_(CounterFamily(registry, "baton_requests_total",
                              "Generate calls that ended, by outcome.")),
      retries_(CounterFamily(registry, "baton_router_retries_total",
                             "Attempts after the first, by the reason.")),
      resumes_(CounterFamily(registry, "baton_router_resumes_total",
                             "Those of them that go on from tokens that had "
                             "come, by the reason.")),
      resumed_tokens_(AddCounter(
          registry, "baton_router_recomputed_tokens_total",
          "Tokens of prompts and answers that resumes sent to be computed "
          "again.")),
      workers_(AddWorkerGauges(registry)),
      time_to_first_token(AddHistogram(
          registry, "baton_time_to_first_token_seconds",
          "From a request's arrival to its first token's writing.")),
      inter_token_latency(AddHistogram(
          registry, "baton_inter_token_latency_seconds",
          "Between the writing of a token and of the next; tokens that are "
          "written together share the time evenly.")),
      queue_time(AddHistogram(registry, "baton_queue_time_seconds",
                              "From a request's arrival to its turn.")),
      prompt_tokens(AddCounter(registry, "baton_prompt_tokens_total",
                               "Prompt tokens of requests that ended.")),
      generated_tokens(AddCounter(registry, "baton_generated_tokens_total",
                                  "Tokens written to clients.")),
      cached_tokens(AddCounter(registry, "baton_cached_tokens_total",
                               "Prompt tokens found in a prefix cache.")),
      running_requests(AddGauge(registry, "baton_running_requests",
                                "Requests that workers work for.")),
      waiting_requests(AddGauge(registry, "baton_waiting_requests",
                                "Requests that wait for their turn.")) {}

void RouterMetrics::CountRequest(absl::StatusCode outcome) {
  requests_.Add({{"outcome", OutcomeName(outcome)}}).Increment();
}

void RouterMetrics::CountRetry(std::string_view reason) {
  retries_.Add({{"reason", std::string(reason)}}).Increment();
}

void RouterMetrics::CountResume(std::string_view reason, uint32_t num_tokens) {
  resumes_.Add({{"reason", std::string(reason)}}).Increment();
  resumed_tokens_.Increment(num_tokens);
}

void RouterMetrics::SetWorkers(
    const std::array<int, kNumWorkerStates>& counts) {
  for (int i = 0; i < kNumWorkerStates; ++i) workers_[i]->Set(counts[i]);
}

}  // namespace baton
