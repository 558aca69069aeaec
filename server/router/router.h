// What all requests of a router share.
//
// The path of one:
//   InferenceService  checks it (validate.h), makes ids of its text
//   GenerationCall    owns it from there: waits for Admission, asks WorkerPool
//                     for workers, calls them (worker_client.h), and feeds what
//                     they say to a Generation, the state machine
//   Generation        decides; SampleStream turns chunks into the one stream
//   GenerateReactor   writes to the client
// Beside it WorkerConnections has a channel to each worker, and a WorkerProber,
// which tells the pool how it is.
#ifndef BATON_SERVER_ROUTER_ROUTER_H_
#define BATON_SERVER_ROUTER_ROUTER_H_

#include <prometheus/registry.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "server/edge/stream_budget.h"
#include "server/edge/stream_metrics.h"
#include "server/edge/stream_ticker.h"
#include "server/router/admission.h"
#include "server/router/outlier_ejection.h"
#include "server/router/retry_budget.h"
#include "server/router/router_metrics.h"
#include "server/router/routing_policy.h"
#include "server/router/service_times.h"
#include "server/router/validate.h"
#include "server/router/worker_connections.h"
#include "server/router/worker_pool.h"
#include "server/router/worker_prober.h"
#include "server/text/text_model.h"

namespace baton {

// Thread-safe. Outlives its requests.
class Router final {
 public:
  struct Options {
    std::string model_name;
    std::vector<WorkerAddress> workers = {};  // The first ones.
    std::function<std::unique_ptr<RoutingPolicy>(v1::WorkerRole)> make_policy;
    OutlierEjection::Options ejection;
    Admission::Options admission;
    StreamLimits streams;
    uint32_t max_retries = 2;
    RetryBudget::Options retry_budget;
    // How long a request waits for workers when none is ready.
    absl::Duration worker_wait = absl::Seconds(5);
    // How long a prefill call may stay open after its decode server spoke.
    absl::Duration release_grace = absl::Seconds(1);
    WorkerProber::Options prober;
    // How long ~Router waits for its calls.
    absl::Duration call_end_timeout = absl::Seconds(30);
    // As WorkerPool's: somebody can serve, or nobody.
    std::function<void(bool ready)> on_ready_change;
  };

  // Begins to probe the workers. `text` and `registry` are borrowed.
  Router(Options options, const TextModel* text,
         prometheus::Registry* registry);
  // Waits for its calls, which end soon once their clients are gone; dies if
  // they do not.
  ~Router();

  const Options& options() const { return options_; }
  const TextModel& text() const { return text_; }
  const Clock& clock() const { return clock_; }
  Admission& admission() { return admission_; }
  WorkerPool& pool() { return pool_; }
  RouterMetrics& metrics() { return metrics_; }
  StreamBudget& streams() { return streams_; }
  ServiceTimes& service_times() { return service_times_; }
  // As WorkerConnections'.
  void SetWorkers(std::vector<WorkerAddress> workers);
  // REQUIRES: a request of the caller's counts at the worker.
  WorkerUse Use(WorkerId worker) { return connections_.Use(worker); }

  RetryBudget& retry_budget() { return retry_budget_; }
  // For an attempt in the place of one that was lost or refused; `resumes`: its
  // request has tokens. Else UNAVAILABLE with a retry delay, and counted.
  absl::Status TakeRetry(bool resumes);
  // A request found the worker unavailable: it is asked at once.
  void OnSuspect(WorkerId worker);
  // Sets the gauges, before a scrape.
  void UpdateGauges();

  // For requests that come now; UNAVAILABLE when nobody can serve.
  absl::StatusOr<ModelBounds> Bounds() const;

  // Of GenerationCall objects: those that may still touch this.
  void OnCallMade() ABSL_LOCKS_EXCLUDED(mutex_);
  void OnCallDeleted() ABSL_LOCKS_EXCLUDED(mutex_);

  // (nonce, counter) names a request at the workers, over all routers.
  uint64_t nonce() const { return nonce_; }
  uint64_t NextCounter() { return ++counter_; }

 private:
  const Options options_;
  const TextModel& text_;
  const ModelBounds text_bounds_;  // All but the context.
  const uint64_t nonce_;
  const MonotonicClock clock_;

  std::atomic<uint64_t> counter_{0};
  Admission admission_;
  ServiceTimes service_times_;
  RouterMetrics metrics_;
  RetryBudget retry_budget_;
  StreamMetrics stream_metrics_;
  StreamBudget streams_;
  const StreamTicker ticker_;
  WorkerPool pool_;
  WorkerConnections connections_;

  absl::Mutex mutex_;
  uint64_t num_calls_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace baton

#endif  // BATON_SERVER_ROUTER_ROUTER_H_
