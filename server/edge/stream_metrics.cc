#include "server/edge/stream_metrics.h"

#include "server/edge/metrics.h"

namespace baton {
namespace {

prometheus::Counter& CutCounter(const SeriesMaker& make, const char* reason) {
  return make.OneCounter("baton_slow_readers_cut_total",
                         "Streams cut since their reader took nothing, by what "
                         "ran out.",
                         {{"reason", reason}});
}

}  // namespace

StreamMetrics::StreamMetrics(const SeriesMaker& make)
    : queued_bytes_(make.OneGauge(
          "baton_stream_queued_bytes",
          "Bytes of answers that wait for their readers, or are being "
          "written.")),
      slow_readers_(make.OneGauge(
          "baton_slow_readers",
          "Streams whose requests stand still until their reader goes on.")),
      paused_(make.OneCounter(
          "baton_slow_readers_paused_total",
          "How often a stream's reader fell so far behind that its request "
          "stood still.")),
      cut_by_timeout_(CutCounter(make, "timeout")),
      cut_by_memory_(CutCounter(make, "memory")) {}

void StreamMetrics::Set(const StreamCounts& counts) {
  queued_bytes_.Set(static_cast<double>(counts.bytes));
  slow_readers_.Set(static_cast<double>(counts.paused));
  absl::MutexLock lock(&mutex_);
  RaiseTo(counts.pauses, &paused_);
  RaiseTo(counts.cut_by_timeout, &cut_by_timeout_);
  RaiseTo(counts.cut_by_memory, &cut_by_memory_);
}

}  // namespace baton
