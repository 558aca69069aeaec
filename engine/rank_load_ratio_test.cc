#include "engine/rank_load_ratio.h"

#include <cstdint>
#include <optional>
#include <vector>

#include "gtest/gtest.h"

namespace baton {
namespace {

using Rows = std::vector<uint32_t>;

TEST(RankLoadRatioTest, IsOfTheFullestRankInEachLayer) {
  RankLoadRatio ratio(2, 2);
  EXPECT_EQ(ratio.Add(0, Rows{3, 1, 0, 0}), std::nullopt);
  // Loads of 4 | 2 and 0 | 6: 10 of a mean of 3 + 3.
  EXPECT_EQ(ratio.Add(1, Rows{1, 1, 2, 4}), 10.0 / 6);
}

TEST(RankLoadRatioTest, ARankMayBeAhead) {
  RankLoadRatio ratio(1, 2);
  EXPECT_EQ(ratio.Add(1, Rows{4}), std::nullopt);
  EXPECT_EQ(ratio.Add(1, Rows{9}), std::nullopt);
  EXPECT_EQ(ratio.Add(0, Rows{4}), 1);
  EXPECT_EQ(ratio.Add(1, Rows{}), std::nullopt);
  EXPECT_EQ(ratio.Add(0, Rows{3}), 1.5);
  EXPECT_EQ(ratio.Add(0, Rows{}), std::nullopt);  // Nobody had a row.
}

TEST(RankLoadRatioTest, OneRankIsAlwaysEven) {
  RankLoadRatio ratio(1, 1);
  EXPECT_EQ(ratio.Add(0, Rows{4, 0, 1}), 1);
}

}  // namespace
}  // namespace baton
