// The group simulator: the real vote, group stepper, scheduler and engine of
// every rank in one thread, with a network and faults. Whatever is wrong ends
// the process, with the command that repeats it.
#ifndef BATON_TESTS_SIMULATION_GROUP_GROUP_SIMULATION_H_
#define BATON_TESTS_SIMULATION_GROUP_GROUP_SIMULATION_H_

#include <cstdint>

#include "tests/simulation/group/group_result.h"
#include "tests/simulation/group/group_world.h"

namespace baton {

struct GroupSimulationOptions {
  uint64_t seed = 1;
  uint64_t rank_steps = 10000;
  // 0: 2 to 16.
  uint32_t num_ranks = 0;
  // As of SimulatedRankOptions.
  bool hashes_kv = false;
  bool faults = true;
};

// What a seed stands for.
GroupWorldOptions RandomGroup(const GroupSimulationOptions& options);

// The same options give the same result.
GroupResult SimulateGroup(const GroupSimulationOptions& options);

}  // namespace baton

#endif  // BATON_TESTS_SIMULATION_GROUP_GROUP_SIMULATION_H_
