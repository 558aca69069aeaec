#include "server/edge/stream_metrics.h"

#include <prometheus/text_serializer.h>

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace baton {
namespace {

TEST(StreamMetricsTest, SaysWhatIsThereAndCountsWhatHasBeenAndNeverFalls) {
  prometheus::Registry registry;
  StreamMetrics metrics(&registry, "router");
  const StreamCounts counts = {.bytes = 1000,
                               .paused = 2,
                               .pauses = 5,
                               .cut_by_timeout = 3,
                               .cut_by_memory = 4};
  metrics.Set(counts);
  // Of a scrape that came later but was counted before.
  metrics.Set({.bytes = 10, .paused = 1, .pauses = 4});
  const std::string text =
      prometheus::TextSerializer().Serialize(registry.Collect());
  for (const char* line :
       {"baton_stream_queued_bytes{role=\"router\"} 10",
        "baton_slow_readers{role=\"router\"} 1",
        "baton_slow_readers_paused_total{role=\"router\"} 5",
        "baton_slow_readers_cut_total{role=\"router\",reason=\"timeout\"} 3",
        "baton_slow_readers_cut_total{role=\"router\",reason=\"memory\"} 4"}) {
    EXPECT_THAT(text, ::testing::HasSubstr(line));
  }
}

}  // namespace
}  // namespace baton
