#include "server/edge/series_maker.h"

namespace baton {

SeriesMaker::SeriesMaker(prometheus::Registry* registry,
                         const std::string& role)
    : registry_(registry), labels_({{"role", role}}) {}

prometheus::Family<prometheus::Counter>& SeriesMaker::Counters(
    const char* name, const char* help) const {
  return prometheus::BuildCounter()
      .Name(name)
      .Help(help)
      .Labels(labels_)
      .Register(*registry_);
}

prometheus::Family<prometheus::Gauge>& SeriesMaker::Gauges(
    const char* name, const char* help) const {
  return prometheus::BuildGauge()
      .Name(name)
      .Help(help)
      .Labels(labels_)
      .Register(*registry_);
}

prometheus::Histogram& SeriesMaker::OneHistogram(
    const char* name, const char* help,
    const prometheus::Histogram::BucketBoundaries& buckets) const {
  return prometheus::BuildHistogram()
      .Name(name)
      .Help(help)
      .Labels(labels_)
      .Register(*registry_)
      .Add({}, buckets);
}

}  // namespace baton
