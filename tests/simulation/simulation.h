// The engine simulator: the real scheduler, engine, executor and transfers in
// one thread, over a model that hashes its KV, and devices, clients, a clock
// and a network that do random things. Whatever is wrong ends the process, with
// the command that repeats it.
#ifndef BATON_TESTS_SIMULATION_SIMULATION_H_
#define BATON_TESTS_SIMULATION_SIMULATION_H_

#include <cstdint>
#include <string>

namespace baton {

struct SimulationOptions {
  uint64_t seed = 1;
  // Committed, at each depth. What is live then is computed to its end.
  uint32_t steps = 1000;
  // Of the pipeline. 0: 1, 2 and 3, with the same requests, whose answers are
  // compared.
  uint32_t depth = 0;
  // Flips bits of the KV now and then, which must not pass unseen.
  bool corrupt_kv = false;
};

// Counts of what happened.
struct SimulationResult {
  uint64_t steps = 0;
  uint64_t rows = 0;
  uint64_t wasted_rows = 0;
  uint64_t tokens = 0;  // Told to clients.
  uint64_t requests = 0;
  uint64_t shared_prompts = 0;  // By a sample that did not compute them.
  uint64_t shared_imports = 0;  // The same of split requests.
  uint64_t found_prefixes = 0;  // In the cache, by whoever computes the rest,
  uint64_t found_imports = 0;   // and by whoever imports it.
  uint64_t evicted_blocks = 0;
  uint64_t stopped = 0;
  uint64_t ended_by_length = 0;
  uint64_t cancelled = 0;
  uint64_t late = 0;
  uint64_t unsampleable = 0;
  uint64_t transfers_failed = 0;
  uint64_t imported = 0;
  uint64_t refused = 0;
  uint64_t twins = 0;
  uint64_t preempted_by_scheduler = 0;
  uint64_t preempted_by_hand = 0;
  uint64_t drafts_verified = 0;
  uint64_t drafts_accepted = 0;
  // Pairs of depths that gave one request the same.
  uint64_t compared = 0;
  // The most steps without progress of the oldest request.
  uint64_t longest_wait = 0;

  SimulationResult& operator+=(const SimulationResult& other);
};

// One line of key value text.
std::string ToString(const SimulationResult& result);

// The same options give the same result.
SimulationResult Simulate(const SimulationOptions& options);

}  // namespace baton

#endif  // BATON_TESTS_SIMULATION_SIMULATION_H_
