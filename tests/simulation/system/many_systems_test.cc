// Ten thousand systems with faults, half of them in each shard.
#include <cstdint>
#include <iostream>

#include "gtest/gtest.h"
#include "tests/simulation/system/fault_kind.h"
#include "tests/simulation/system/system_simulation.h"

namespace baton {
namespace {

constexpr uint64_t kSeedsPerPart = 5000;
constexpr uint64_t kEvents = 500;

class ManySystemsTest : public testing::TestWithParam<uint64_t> {};

INSTANTIATE_TEST_SUITE_P(Parts, ManySystemsTest,
                         testing::Range(uint64_t{0}, uint64_t{2}));

TEST_P(ManySystemsTest, WithEveryKindOfFaultNoTokenIsWrongAndNothingIsLeft) {
  SystemResult total;
  const uint64_t first = 1 + GetParam() * kSeedsPerPart;
  for (uint64_t seed = first; seed < first + kSeedsPerPart; ++seed) {
    total += SimulateSystem({.seed = seed, .events = kEvents});
  }
  std::cerr << ToString(total) << '\n';
  EXPECT_EQ(total.seeds, kSeedsPerPart);
  EXPECT_GE(total.fewest_events, kEvents);
  for (size_t i = 0; i < kNumFaultKinds; ++i) {
    EXPECT_GT(total.faults[i], 0u) << kFaultNames[i];
  }
}

}  // namespace
}  // namespace baton
