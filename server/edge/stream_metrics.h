// The series of /metrics about readers that are behind.
#ifndef BATON_SERVER_EDGE_STREAM_METRICS_H_
#define BATON_SERVER_EDGE_STREAM_METRICS_H_

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/registry.h>

#include <string>

#include "absl/synchronization/mutex.h"
#include "server/edge/series_maker.h"
#include "server/edge/stream_budget.h"

namespace baton {

// Thread-safe. The registry is borrowed and outlives it.
class StreamMetrics final {
 public:
  StreamMetrics(prometheus::Registry* registry, const std::string& role)
      : StreamMetrics(SeriesMaker(registry, role)) {}

  // Before each scrape.
  void Set(const StreamCounts& counts) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  explicit StreamMetrics(const SeriesMaker& make);

  prometheus::Gauge& queued_bytes_;
  prometheus::Gauge& slow_readers_;
  prometheus::Counter& paused_;
  prometheus::Counter& cut_by_timeout_;
  prometheus::Counter& cut_by_memory_;
  absl::Mutex mutex_;  // One scrape raises the counters.
};

}  // namespace baton

#endif  // BATON_SERVER_EDGE_STREAM_METRICS_H_
