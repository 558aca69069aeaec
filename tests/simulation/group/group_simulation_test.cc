#include "tests/simulation/group/group_simulation.h"

#include <cstdint>
#include <iostream>

#include "gtest/gtest.h"

namespace baton {
namespace {

constexpr uint64_t kSeeds = 20;

TEST(GroupSimulationTest, GroupsOfEverySizeAgreeWhateverFails) {
  GroupResult total;
  for (uint64_t seed = 1; seed <= 4 * kSeeds; ++seed) {
    total += SimulateGroup({.seed = seed, .rank_steps = 5000});
  }
  std::cerr << ToString(total) << '\n';
  EXPECT_GT(total.kills, 20u);
  EXPECT_GT(total.fences, 20u);
  EXPECT_GT(total.handed_back, 1000u);
  EXPECT_GT(total.late_messages, 1000u);
  EXPECT_GT(total.sleeps, 100u);
  EXPECT_GT(total.fallbacks, 10u);
  EXPECT_GT(total.placement_switches, 100u);
  EXPECT_GT(total.aborted, 100u);
}

TEST(GroupSimulationTest, EngineAndModelGiveTheirTokensInAGroup) {
  GroupResult total;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    total +=
        SimulateGroup({.seed = seed, .rank_steps = 2000, .hashes_kv = true});
  }
  std::cerr << ToString(total) << '\n';
  EXPECT_GT(total.tokens, 10000u);
  EXPECT_GT(total.handed_back, 100u);
}

TEST(GroupSimulationTest, ASeedIsOneRun) {
  const GroupSimulationOptions options = {.seed = 7, .rank_steps = 5000};
  EXPECT_EQ(ToString(SimulateGroup(options)), ToString(SimulateGroup(options)));
}

// Ranks of few blocks, many clients, no faults.
GroupWorldOptions CrowdedGroup(uint64_t seed) {
  GroupWorldOptions world;
  world.seed = seed;
  world.num_processes = 3;
  world.rank.engine.max_running_requests = 4;
  world.rank.num_blocks = 6;
  world.max_clients = 24;
  world.may_livelock = true;
  return world;
}

uint64_t LivelocksOf(GroupWorldOptions world) {
  uint64_t livelocks = 0;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    world.seed = seed;
    GroupWorld run(world);
    run.Run(20000);
    livelocks += run.result().livelocks;
  }
  return livelocks;
}

// Every rank has prompts that wait for blocks, which those that decode hold. A
// prefill in vain is followed by an ALL point, and all still want one.
TEST(GroupLivelockTest, WithoutTheSecondRoundPrefillsInVainFollowEachOther) {
  GroupWorldOptions world = CrowdedGroup(1);
  world.wants_by_estimate = true;
  EXPECT_EQ(LivelocksOf(world), 0u);
  world.has_second_round = false;
  EXPECT_EQ(LivelocksOf(world), kSeeds);
}

// A request that was aborted while it waited stands before those behind it, and
// its rank wants no prefill; in the end nobody does, and no prefill sweeps it.
TEST(GroupLivelockTest, AWaiterThatEndedAndIsNotSweptStopsAllPrefills) {
  GroupWorldOptions world = CrowdedGroup(1);
  world.max_clients = 4;
  world.abort_weight = 16384;
  EXPECT_EQ(LivelocksOf(world), 0u);
  world.sweeps_when_decoding = false;
  EXPECT_EQ(LivelocksOf(world), kSeeds);
}

}  // namespace
}  // namespace baton
