// The router's series on /metrics.
#ifndef BATON_SERVER_ROUTER_ROUTER_METRICS_H_
#define BATON_SERVER_ROUTER_ROUTER_METRICS_H_

#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <array>
#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "server/router/worker_state.h"

namespace baton {

class SeriesMaker;

// As dashboards name them: workers of one role.
inline constexpr std::array<std::string_view, 3> kWorkerPools = {
    "prefill", "decode", "unified"};

// Thread-safe. The registry is borrowed and outlives this.
class RouterMetrics final {
 public:
  explicit RouterMetrics(prometheus::Registry* registry);

  void CountRequest(absl::StatusCode outcome);
  void CountRetry(std::string_view reason);
  // Such a retry goes on from tokens that are there, of `num_tokens` with the
  // prompt.
  void CountResume(std::string_view reason, uint32_t num_tokens);
  // It could not have met its deadline: QUEUE_TOO_LONG, PROMPT_TOO_LONG.
  void CountDeadlineRefusal(std::string_view reason);
  // The budget has none left, or none that resumes.
  void CountRetryRefused(bool resumes);
  void CountEjection(std::string_view reason);
  // Of kWorkerPools; by WorkerState.
  void SetWorkers(std::string_view pool,
                  const std::array<int, kNumWorkerStates>& counts);

 private:
  explicit RouterMetrics(const SeriesMaker& make);

  prometheus::Family<prometheus::Counter>& requests_;
  prometheus::Family<prometheus::Counter>& retries_;
  prometheus::Family<prometheus::Counter>& resumes_;
  prometheus::Family<prometheus::Counter>& deadline_refusals_;
  prometheus::Counter& resumed_tokens_;
  prometheus::Family<prometheus::Counter>& refused_retries_;
  prometheus::Family<prometheus::Counter>& ejections_;
  prometheus::Family<prometheus::Gauge>& workers_;

 public:
  prometheus::Histogram& time_to_first_token;
  prometheus::Histogram& inter_token_latency;
  prometheus::Histogram& queue_time;
  prometheus::Counter& prompt_tokens;
  prometheus::Counter& generated_tokens;
  prometheus::Counter& cached_tokens;
  prometheus::Gauge& running_requests;
  prometheus::Gauge& waiting_requests;
  prometheus::Gauge& ejected_workers;
};

}  // namespace baton

#endif  // BATON_SERVER_ROUTER_ROUTER_METRICS_H_
