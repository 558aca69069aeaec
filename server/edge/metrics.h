// /metrics, /healthz and /readyz over HTTP, and cheap histograms.
#ifndef BATON_SERVER_EDGE_METRICS_H_
#define BATON_SERVER_EDGE_METRICS_H_

#include <prometheus/counter.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace baton {

// Seconds, 100 us to 100 s: for latencies.
const prometheus::Histogram::BucketBoundaries& LatencyBuckets();

// "ok", "cancelled", "deadline_exceeded", ...: how a label and a log line call
// the end of a request.
std::string OutcomeName(absl::StatusCode code);

// To what is counted elsewhere; never down, for scrapes may come out of order.
// One thread at a time a counter.
void RaiseTo(uint64_t total, prometheus::Counter* counter);

// Collects observations of one thread and hands them over in one go, since a
// prometheus::Histogram takes a lock for each. Thread-compatible.
class HistogramBatch {
 public:
  // `boundaries` as the histogram's; borrowed.
  explicit HistogramBatch(
      const prometheus::Histogram::BucketBoundaries& boundaries);
  void Observe(double value);
  void FlushTo(prometheus::Histogram* histogram);

 private:
  const prometheus::Histogram::BucketBoundaries& boundaries_;
  std::vector<double> counts_;
  double sum_ = 0;
  bool empty_ = true;
};

struct MetricsServerOptions {
  std::string address = "127.0.0.1:0";  // host:port; port 0: any free one.
  // Borrowed; outlives the server.
  const prometheus::Registry* registry = nullptr;
  // Called before each scrape, to set gauges. May be empty.
  std::function<void()> before_scrape = nullptr;
  // /readyz is 200 when true, else 503.
  std::function<bool()> ready = nullptr;
  // Likewise /healthz. Empty: true.
  std::function<bool()> live = nullptr;
};

// A small HTTP server with two threads of its own. Its functions are called on
// those threads.
class MetricsServer {
 public:
  // UNAVAILABLE when the address cannot be bound.
  static absl::StatusOr<std::unique_ptr<MetricsServer>> Start(
      MetricsServerOptions options);
  ~MetricsServer();
  MetricsServer(const MetricsServer&) = delete;
  MetricsServer& operator=(const MetricsServer&) = delete;

  int port() const;

 private:
  class Http;
  explicit MetricsServer(std::unique_ptr<Http> http);
  std::unique_ptr<Http> http_;
};

}  // namespace baton

#endif  // BATON_SERVER_EDGE_METRICS_H_
