// The worker's series on /metrics. Every one carries the role.
#ifndef BATON_SERVER_WORKER_METRICS_H_
#define BATON_SERVER_WORKER_METRICS_H_

#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <cstdint>
#include <string>

#include "absl/synchronization/mutex.h"
#include "comm/kv_transfer.h"
#include "engine/engine_options.h"
#include "engine/token_sink.h"

namespace baton {

// Thread-safe. The registry is borrowed and outlives it.
class WorkerMetrics {
 public:
  WorkerMetrics(prometheus::Registry* registry, const std::string& role);

  // At each request's end. A refused request has an outcome with its status
  // alone.
  void OnRequestEnd(const GenerationOutcome& outcome);
  // When the blocks of a cancelled or late request are free.
  void OnAbort(const AbortStats& stats);
  // Before each scrape.
  void SetLoad(const EngineLoad& load);
  void SetTransfers(const KvTransferCounters& counters);

  // For the streams, which flush to them now and then.
  prometheus::Histogram& time_to_first_token() { return time_to_first_token_; }
  prometheus::Histogram& inter_token_latency() { return inter_token_latency_; }
  prometheus::Counter& generated_tokens() { return generated_tokens_; }
  // Of requests that have ended.
  uint64_t imported_kv_bytes() const {
    return static_cast<uint64_t>(kv_transfer_bytes_.Value());
  }

 private:
  struct Maker;
  void CountPrompt(const GenerationOutcome& outcome);
  explicit WorkerMetrics(const Maker& make);

  prometheus::Family<prometheus::Counter>& requests_;
  prometheus::Family<prometheus::Counter>& aborted_requests_;
  prometheus::Histogram& abort_to_free_time_;
  prometheus::Histogram& abort_to_free_steps_;
  prometheus::Histogram& queue_time_;
  prometheus::Histogram& time_to_first_token_;
  prometheus::Histogram& inter_token_latency_;
  prometheus::Counter& prompt_tokens_;
  prometheus::Counter& generated_tokens_;
  prometheus::Counter& cached_tokens_;
  // Of prompts, by where their KV came from.
  prometheus::Counter& computed_tokens_;
  prometheus::Counter& found_tokens_;
  prometheus::Counter& imported_tokens_;
  prometheus::Counter& kv_transfer_bytes_;
  prometheus::Histogram& kv_transfer_time_;
  prometheus::Gauge& running_requests_;
  prometheus::Gauge& waiting_requests_;
  prometheus::Gauge& paused_requests_;
  prometheus::Gauge& kv_utilization_;
  prometheus::Gauge& free_blocks_;
  prometheus::Gauge& owned_blocks_;
  prometheus::Gauge& exported_blocks_;
  prometheus::Gauge& importing_blocks_;
  prometheus::Gauge& deferred_blocks_;
  prometheus::Gauge& inflight_tokens_;
  prometheus::Gauge& prefix_cache_blocks_;
  prometheus::Gauge& importing_requests_;
  prometheus::Gauge& exporting_requests_;
  prometheus::Counter& damaged_blocks_;
  prometheus::Counter& malformed_messages_;
  prometheus::Counter& ignored_messages_;
  prometheus::Counter& queried_tokens_;
  prometheus::Counter& hit_tokens_;
  prometheus::Counter& evicted_blocks_;
  absl::Mutex raise_mutex_;  // One scrape raises the counters above.
};

}  // namespace baton

#endif  // BATON_SERVER_WORKER_METRICS_H_
