// Ten million steps of ranks in groups of 2 to 16, and ten thousand steps of
// groups of 128.
#include <cstdint>
#include <iostream>

#include "gtest/gtest.h"
#include "tests/simulation/group/group_simulation.h"

namespace baton {
namespace {

constexpr uint64_t kParts = 20;
constexpr uint64_t kRankStepsPerPart = 10'000'000 / kParts;
constexpr uint64_t kLargeParts = 4;
constexpr uint32_t kLargeGroup = 128;
constexpr uint64_t kLargeStepsPerPart = 10'000 / kLargeParts;

class ManyGroupStepsTest : public testing::TestWithParam<uint64_t> {};

INSTANTIATE_TEST_SUITE_P(Parts, ManyGroupStepsTest,
                         testing::Range(uint64_t{0}, kParts));

// Every tenth group runs a model that hashes its KV.
TEST_P(ManyGroupStepsTest, RanksTakeTheSameStepsAndLoseNothing) {
  GroupResult total;
  for (uint64_t i = 0; total.rank_steps < kRankStepsPerPart; ++i) {
    total += SimulateGroup({.seed = 10000 + GetParam() * 1000 + i,
                            .rank_steps = 10000,
                            .hashes_kv = i % 10 == 9});
  }
  std::cerr << ToString(total) << '\n';
  EXPECT_GT(total.tokens, total.rank_steps / 10);
}

class LargeGroupTest : public testing::TestWithParam<uint64_t> {};

INSTANTIATE_TEST_SUITE_P(Parts, LargeGroupTest,
                         testing::Range(uint64_t{0}, kLargeParts));

TEST_P(LargeGroupTest, RanksTakeTheSameStepsAndLoseNothing) {
  const GroupResult result =
      SimulateGroup({.seed = 50000 + GetParam(),
                     .rank_steps = kLargeStepsPerPart * kLargeGroup,
                     .num_ranks = kLargeGroup});
  std::cerr << ToString(result) << '\n';
  EXPECT_GE(result.steps, kLargeStepsPerPart);
}

}  // namespace
}  // namespace baton
