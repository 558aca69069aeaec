#include "tests/simulation/system/system_simulation.h"

#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace baton {
namespace {

TEST(SystemSimulationTest, ASeedSaysTheSameTwice) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    const SystemSimulationOptions options = {.seed = seed, .events = 1000};
    EXPECT_EQ(ToString(SimulateSystem(options)),
              ToString(SimulateSystem(options)));
  }
}

// In another process, whose addresses and hash seeds are others, too.
TEST(SystemSimulationTest, ASeedsLogIsTheSameEverywhere) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto simulate = [] {
    SystemResult total;
    for (uint64_t seed = 1; seed <= 100; ++seed) {
      total += SimulateSystem({.seed = seed, .events = 500});
    }
    return ToString(total);
  };
  const std::string here = simulate();
  std::cerr << here << '\n';
  const auto simulate_there = [&simulate] {
    std::cerr << simulate() << '\n';
    std::exit(0);
  };
  EXPECT_EXIT(simulate_there(), testing::ExitedWithCode(0),
              testing::HasSubstr(here));
}

TEST(SystemSimulationDeathTest, AWrongBitOfKvIsSeenAndTheCommandPrinted) {
  const auto corrupt = [] {
    for (uint64_t seed = 1; seed <= 50; ++seed) {
      SimulateSystem({.seed = seed, .events = 500, .corrupt_kv = true});
    }
  };
  EXPECT_DEATH(corrupt(),
               "bazel run //tests/simulation/system:simulate -- --seed=[0-9]+ "
               "--events=500 --trace");
}

}  // namespace
}  // namespace baton
