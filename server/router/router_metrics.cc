#include "server/router/router_metrics.h"

#include <string>

#include "server/edge/metrics.h"
#include "server/edge/series_maker.h"
#include "server/router/generation_actions.h"
#include "server/router/outlier_ejection.h"

namespace baton {
namespace {

// So that rates over the first event are right, and absence is an alert.
template <typename Names>
void StartAtZero(const char* label, const Names& values,
                 prometheus::Family<prometheus::Counter>* family) {
  for (const std::string_view value : values) {
    family->Add({{label, std::string(value)}});
  }
}

constexpr std::array<std::string_view, 2> kRetryKinds = {"retry", "resume"};
// As CheckTimeLeft gives them.
constexpr std::array<std::string_view, 2> kDeadlineReasons = {
    "QUEUE_TOO_LONG", "PROMPT_TOO_LONG"};
constexpr std::array<EjectionReason, kNumEjectionReasons> kEjectionReasons = {
    EjectionReason::kInARow, EjectionReason::kRatio, EjectionReason::kTrial};

}  // namespace

RouterMetrics::RouterMetrics(prometheus::Registry* registry)
    : RouterMetrics(SeriesMaker(registry, "router")) {}

RouterMetrics::RouterMetrics(const SeriesMaker& make)
    : requests_(make.Counters("baton_requests_total",
                              "Generate calls that ended, by outcome.")),
      retries_(make.Counters("baton_router_retries_total",
                             "Attempts after the first, by the reason.")),
      resumes_(make.Counters("baton_router_resumes_total",
                             "Those of them that go on from tokens that had "
                             "come, by the reason.")),
      deadline_refusals_(make.Counters(
          "baton_router_deadline_refusals_total",
          "Requests refused since they could not have met their deadline, by "
          "the reason.")),
      resumed_tokens_(make.OneCounter(
          "baton_router_recomputed_tokens_total",
          "Tokens of prompts and answers that resumes sent to be computed "
          "again.")),
      refused_retries_(make.Counters(
          "baton_router_retries_refused_total",
          "Requests that ended because there were too many attempts after the "
          "first, by whether theirs was a new try or a resume.")),
      ejections_(make.Counters(
          "baton_router_ejections_total",
          "Workers that take nothing for a while since calls to them fail: so "
          "many in a row, a ratio of them, or the trial that was to bring it "
          "back.")),
      workers_(make.Gauges(
          "baton_router_workers",
          "Workers, by their pool and what they are to the router.")),
      time_to_first_token(make.OneHistogram(
          "baton_time_to_first_token_seconds",
          "From a request's arrival to its first token's writing.")),
      inter_token_latency(make.OneHistogram(
          "baton_inter_token_latency_seconds",
          "Between the writing of a token and of the next; tokens that are "
          "written together share the time evenly.")),
      queue_time(make.OneHistogram(
          "baton_queue_time_seconds",
          "Waiting of a request whose turn came, here and at its workers.")),
      prompt_tokens(make.OneCounter("baton_prompt_tokens_total",
                                    "Prompt tokens of requests that ended.")),
      generated_tokens(make.OneCounter("baton_generated_tokens_total",
                                       "Tokens written to clients.")),
      cached_tokens(make.OneCounter("baton_cached_tokens_total",
                                    "Prompt tokens found in a prefix cache.")),
      running_requests(make.OneGauge("baton_running_requests",
                                     "Requests that workers work for.")),
      waiting_requests(make.OneGauge("baton_waiting_requests",
                                     "Requests that wait for their turn.")),
      ejected_workers(
          make.OneGauge("baton_router_ejected_workers",
                        "Workers that are well by their probes and ejected.")) {
  StartAtZero("reason", kRetryReasons, &retries_);
  StartAtZero("reason", kRetryReasons, &resumes_);
  StartAtZero("reason", kDeadlineReasons, &deadline_refusals_);
  StartAtZero("kind", kRetryKinds, &refused_retries_);
  for (const std::string_view pool : kWorkerPools) SetWorkers(pool, {});
  for (const EjectionReason reason : kEjectionReasons) {
    StartAtZero("reason", std::array{EjectionReasonName(reason)}, &ejections_);
  }
}

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

void RouterMetrics::CountDeadlineRefusal(std::string_view reason) {
  deadline_refusals_.Add({{"reason", std::string(reason)}}).Increment();
}

void RouterMetrics::CountRetryRefused(bool resumes) {
  refused_retries_.Add({{"kind", resumes ? "resume" : "retry"}}).Increment();
}

void RouterMetrics::CountEjection(std::string_view reason) {
  ejections_.Add({{"reason", std::string(reason)}}).Increment();
}

void RouterMetrics::SetWorkers(
    std::string_view pool, const std::array<int, kNumWorkerStates>& counts) {
  for (int i = 0; i < kNumWorkerStates; ++i) {
    const auto state = static_cast<WorkerState>(i);
    workers_
        .Add({{"pool", std::string(pool)},
              {"state", std::string(WorkerStateName(state))}})
        .Set(counts[i]);
  }
}

}  // namespace baton
