#include "engine/expert_load_collector.h"

#include <cstdint>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace baton {
namespace {

using ::testing::ElementsAre;

constexpr ExpertLayout kLayout = {
    .num_layers = 2, .num_experts = 2, .num_ranks = 2, .slots_per_rank = 1};

RebalanceMessage Loads(uint64_t round, uint32_t layer,
                       std::vector<uint32_t> values, uint64_t plan = 0) {
  return {.round = round,
          .plan = plan,
          .layer = layer,
          .values = std::move(values)};
}

TEST(ExpertLoadCollectorTest, ARoundIsTheSumOfAllProcesses) {
  ExpertLoadCollector collector(kLayout, 2);
  EXPECT_TRUE(collector.Add(0, Loads(1, 0, {1, 2, 3, 4}, 5)));
  EXPECT_TRUE(collector.Add(1, Loads(1, 0, {10, 20, 30, 40}, 3)));
  EXPECT_TRUE(collector.Add(1, Loads(1, 1, {1, 1}, 4)));
  EXPECT_FALSE(collector.complete());
  EXPECT_TRUE(collector.Add(0, Loads(1, 1, {2, 0}, 5)));
  ASSERT_TRUE(collector.complete());
  EXPECT_EQ(collector.closed_plan(), 4u);
  EXPECT_THAT(collector.Take(),
              ElementsAre(ElementsAre(11, 22, 33, 44), ElementsAre(3, 1)));
  EXPECT_FALSE(collector.complete());
  EXPECT_FALSE(collector.Add(0, Loads(1, 0, {1, 2})));
  EXPECT_TRUE(collector.Add(0, Loads(2, 0, {1, 2})));
}

TEST(ExpertLoadCollectorTest, RefusesWhatDoesNotFit) {
  ExpertLoadCollector collector(kLayout, 2);
  EXPECT_TRUE(collector.Add(0, Loads(1, 0, {1, 2})));
  EXPECT_FALSE(collector.Add(0, Loads(1, 0, {1, 2})));        // Again.
  EXPECT_FALSE(collector.Add(1, Loads(1, 0, {1, 2, 3, 4})));  // Other rows.
  EXPECT_FALSE(collector.Add(1, Loads(1, 1, {1, 2, 3})));
  EXPECT_FALSE(collector.Add(1, Loads(1, 1, {})));
  EXPECT_FALSE(collector.Add(1, Loads(1, 2, {1, 2})));  // Of no layer.
  EXPECT_FALSE(collector.Add(2, Loads(1, 0, {1, 2})));  // Of nobody.
  EXPECT_FALSE(collector.Add(1, Loads(3, 0, {1, 2})));  // Far ahead.
  EXPECT_TRUE(collector.Add(1, Loads(1, 0, {1, 2})));
}

TEST(ExpertLoadCollectorTest, TheNextRoundEndsOneThatNeverCompletes) {
  ExpertLoadCollector collector(kLayout, 2);
  EXPECT_TRUE(collector.Add(0, Loads(1, 0, {1, 2})));
  for (uint32_t layer = 0; layer < 2; ++layer) {
    for (uint32_t p = 0; p < 2; ++p) {
      EXPECT_TRUE(collector.Add(p, Loads(2, layer, {3, 4})));
    }
  }
  ASSERT_TRUE(collector.complete());
  EXPECT_THAT(collector.Take(),
              ElementsAre(ElementsAre(6, 8), ElementsAre(6, 8)));
}

}  // namespace
}  // namespace baton
