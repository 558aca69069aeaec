// The whole system in one thread: real routers' and workers' cores, over
// simulated calls, networks and clocks, with everything that may go wrong.
// Whatever is wrong with them ends the process, with the command that repeats
// it.
#ifndef BATON_TESTS_SIMULATION_SYSTEM_SYSTEM_SIMULATION_H_
#define BATON_TESTS_SIMULATION_SYSTEM_SYSTEM_SIMULATION_H_

#include <cstdint>

#include "tests/simulation/system/system_result.h"

namespace baton {

struct SystemSimulationOptions {
  uint64_t seed = 1;
  // With faults; then what is live comes to its end.
  uint64_t events = 300;
  bool trace = false;  // Prints every event.
  // Flips bits of the KV now and then, which must not pass unseen.
  bool corrupt_kv = false;
};

// The same options give the same result.
SystemResult SimulateSystem(const SystemSimulationOptions& options);

}  // namespace baton

#endif  // BATON_TESTS_SIMULATION_SYSTEM_SYSTEM_SIMULATION_H_
