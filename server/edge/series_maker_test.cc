#include "server/edge/series_maker.h"

#include <gtest/gtest.h>
#include <prometheus/text_serializer.h>

namespace baton {
namespace {

TEST(SeriesMakerTest, EachSeriesHasTheRoleAndAFamilyIsMadeOnce) {
  prometheus::Registry registry;
  const SeriesMaker make(&registry, "decode");
  make.OneCounter("cats_total", "Cats.", {{"fur", "black"}}).Increment(2);
  make.OneCounter("cats_total", "Cats.", {{"fur", "red"}}).Increment(3);
  make.OneGauge("mice", "Mice.").Set(5);
  make.OneHistogram("naps", "Naps.", {1, 2}).Observe(1.5);
  EXPECT_EQ(&make.Gauges("mice", "Mice."), &make.Gauges("mice", "Mice."));
  const std::string text =
      prometheus::TextSerializer().Serialize(registry.Collect());
  for (const char* line :
       {"cats_total{role=\"decode\",fur=\"black\"} 2",
        "cats_total{role=\"decode\",fur=\"red\"} 3", "mice{role=\"decode\"} 5",
        "naps_bucket{role=\"decode\",le=\"1\"} 0",
        "naps_bucket{role=\"decode\",le=\"2\"} 1"}) {
    EXPECT_NE(text.find(line), std::string::npos) << line << '\n' << text;
  }
}

}  // namespace
}  // namespace baton
