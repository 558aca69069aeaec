// Groups whose experts move while they take steps, with loads that fail and
// epochs that end.
#include <cstdint>
#include <functional>
#include <iostream>
#include <random>

#include "gtest/gtest.h"
#include "tests/simulation/group/rebalance_world.h"

namespace baton {
namespace {

RebalanceWorldOptions RandomWorld(uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto draw = [&random](uint32_t low, uint32_t high) {
    return static_cast<uint32_t>(low + random() % (high - low + 1));
  };
  RebalanceWorldOptions options;
  options.seed = seed;
  options.num_processes = draw(1, 5);
  options.ranks_per_process = draw(1, 3);
  const uint32_t ranks = options.num_processes * options.ranks_per_process;
  const uint32_t experts = draw(ranks, 4 * ranks);
  const uint32_t copies = DefaultRedundantExperts(experts, ranks) +
                          (ranks > 1 ? ranks * draw(0, 1) : 0);
  options.layout = MakeExpertLayout(draw(1, 6), experts, ranks, copies).value();
  options.interval = draw(1, 80);
  options.window_steps = draw(1, 64);
  options.max_layers_in_flight = draw(1, 4);
  options.separate_channels = draw(0, 1) == 0;
  return options;
}

RebalanceWorldResult Simulate(const RebalanceWorldOptions& options) {
  std::cerr << "seed " << options.seed << '\n';
  RebalanceWorld world(options);
  world.Run(600);
  world.Settle();
  RebalanceWorldResult result = world.Finish();
  result.excess = world.ratio() - 1;
  result.first_excess = world.first_ratio() - 1;
  return result;
}

// Of so many seeds, each as it is meant.
RebalanceWorldResult SimulateMany(
    uint64_t first_seed,
    const std::function<void(RebalanceWorldOptions*)>& mean) {
  constexpr uint64_t kSeeds = 40;
  RebalanceWorldResult total;
  for (uint64_t seed = first_seed; seed < first_seed + kSeeds; ++seed) {
    RebalanceWorldOptions options = RandomWorld(seed);
    mean(&options);
    total += Simulate(options);
  }
  return total;
}

TEST(ExpertRebalanceSimulationTest, ProcessesSwitchTogetherAndLoadsComeToEven) {
  const RebalanceWorldResult result =
      SimulateMany(1, [](RebalanceWorldOptions*) {});
  EXPECT_GT(result.switches, 1000u);
  EXPECT_EQ(result.abandoned, 0u);
  EXPECT_LT(result.excess, result.first_excess / 4);
}

TEST(ExpertRebalanceSimulationTest, LoadsThatFailEndTheirPlanAndNotTheNext) {
  const RebalanceWorldResult result = SimulateMany(
      101, [](RebalanceWorldOptions* options) { options->failures = 16; });
  EXPECT_GT(result.switches, 300u);
  EXPECT_GT(result.abandoned, 100u);
  EXPECT_GT(result.cancelled, 50u);
  EXPECT_LT(result.excess, result.first_excess / 4);
}

TEST(ExpertRebalanceSimulationTest, AnEpochMayEndAtAnyTime) {
  const RebalanceWorldResult result =
      SimulateMany(201, [](RebalanceWorldOptions* options) {
        options->failures = 4;
        options->epoch_ends = 8;
      });
  EXPECT_GT(result.epochs, 200u);
  EXPECT_GT(result.switches, 200u);
}

}  // namespace
}  // namespace baton
