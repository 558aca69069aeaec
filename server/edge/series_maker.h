// Makes the series of /metrics: each carries the role of its process.
#ifndef BATON_SERVER_EDGE_SERIES_MAKER_H_
#define BATON_SERVER_EDGE_SERIES_MAKER_H_

#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <string>

#include "server/edge/metrics.h"

namespace baton {

// A family by the same name is the same one each time. Borrows the registry,
// which outlives the series.
class SeriesMaker {
 public:
  SeriesMaker(prometheus::Registry* registry, const std::string& role);

  prometheus::Family<prometheus::Counter>& Counters(const char* name,
                                                    const char* help) const;
  prometheus::Family<prometheus::Gauge>& Gauges(const char* name,
                                                const char* help) const;
  prometheus::Counter& OneCounter(const char* name, const char* help,
                                  const prometheus::Labels& labels = {}) const {
    return Counters(name, help).Add(labels);
  }
  prometheus::Gauge& OneGauge(const char* name, const char* help,
                              const prometheus::Labels& labels = {}) const {
    return Gauges(name, help).Add(labels);
  }
  prometheus::Histogram& OneHistogram(
      const char* name, const char* help,
      const prometheus::Histogram::BucketBoundaries& buckets =
          LatencyBuckets()) const;

 private:
  prometheus::Registry* const registry_;
  const prometheus::Labels labels_;
};

}  // namespace baton

#endif  // BATON_SERVER_EDGE_SERIES_MAKER_H_
