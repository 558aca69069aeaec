// A thousand worlds, a thousand steps at each depth.
#include <cstdint>
#include <iostream>

#include "gtest/gtest.h"
#include "tests/simulation/simulation.h"

namespace baton {
namespace {

constexpr uint64_t kSeeds = 1000;
constexpr uint64_t kSeedsPerPart = 50;
constexpr uint32_t kSteps = 1000;

class ManySeedsTest : public testing::TestWithParam<uint64_t> {};

INSTANTIATE_TEST_SUITE_P(Parts, ManySeedsTest,
                         testing::Range(uint64_t{0}, kSeeds / kSeedsPerPart));

TEST_P(ManySeedsTest, AllDepthsGiveTheExactTokensAndLeakAndStarveNothing) {
  SimulationResult total;
  const uint64_t first = 1000 + GetParam() * kSeedsPerPart;
  for (uint64_t seed = first; seed < first + kSeedsPerPart; ++seed) {
    total += Simulate({.seed = seed, .steps = kSteps});
  }
  std::cerr << ToString(total) << '\n';
  EXPECT_GE(total.steps, 3 * kSeedsPerPart * kSteps);
  EXPECT_GT(total.compared, 0u);
}

// A block that is free while a launched step still reads it, and given to
// another sequence: frees wait for the step's event, so that the steps ahead
// are token-exact with the synchronous ones.
TEST(BlockReuseTest, HundredThousandStepsAheadEqualTheSynchronousOnes) {
  SimulationResult total;
  for (uint64_t seed = 1; total.steps < 3 * 100000; ++seed) {
    total += Simulate({.seed = seed, .steps = 4000});
  }
  std::cerr << ToString(total) << '\n';
  EXPECT_GT(total.compared, 10000u);
  EXPECT_GT(total.preempted_by_hand + total.preempted_by_scheduler, 1000u);
  EXPECT_GT(total.cancelled, 1000u);
}

}  // namespace
}  // namespace baton
