#include "tests/simulation/simulation.h"

#include <cstdint>
#include <iostream>

#include "gtest/gtest.h"

namespace baton {
namespace {

TEST(SimulationTest, EverythingThatCanHappenHappens) {
  SimulationResult total;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    total += Simulate({.seed = seed, .steps = 200});
  }
  std::cerr << ToString(total) << '\n';
  EXPECT_GE(total.steps, 40u * 3 * 200);
  for (uint64_t count :
       {total.wasted_rows, total.shared_prompts, total.shared_imports,
        total.found_prefixes, total.found_imports, total.evicted_blocks,
        total.stopped, total.ended_by_length, total.cancelled, total.late,
        total.unsampleable, total.transfers_failed, total.imported,
        total.refused, total.twins, total.preempted_by_scheduler,
        total.preempted_by_hand, total.drafts_accepted, total.compared}) {
    EXPECT_GT(count, 0u);
  }
  EXPECT_GT(total.drafts_verified, total.drafts_accepted);
}

TEST(SimulationTest, ASeedSaysTheSameTwice) {
  for (uint64_t seed : {1, 2, 3, 4, 5}) {
    const SimulationOptions options = {.seed = seed, .steps = 200};
    EXPECT_EQ(ToString(Simulate(options)), ToString(Simulate(options)));
  }
}

TEST(SimulationDeathTest, AWrongBitOfKvIsSeenAndTheCommandPrinted) {
  const auto corrupt = [] {
    for (uint64_t seed = 7; seed < 12; ++seed) {
      Simulate({.seed = seed, .steps = 500, .corrupt_kv = true});
    }
  };
  EXPECT_DEATH(corrupt(),
               "bazel run //tests/simulation:simulate -- --seed=[0-9]+ "
               "--steps=500 --depth=0");
}

}  // namespace
}  // namespace baton
