// Counts of what happened in simulated systems.
#ifndef BATON_TESTS_SIMULATION_SYSTEM_SYSTEM_RESULT_H_
#define BATON_TESTS_SIMULATION_SYSTEM_SYSTEM_RESULT_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>

#include "absl/time/time.h"
#include "tests/simulation/system/fault_kind.h"

namespace baton {

// Of absl::StatusCode, all of them.
inline constexpr size_t kNumStatusCodes = 17;

struct SystemResult {
  uint64_t seeds = 0;
  uint64_t events = 0;
  uint64_t fewest_events = UINT64_MAX;  // Of a seed.
  uint64_t requests = 0;
  uint64_t tokens = 0;                              // Told to clients.
  uint64_t steps = 0;                               // Of engines.
  std::array<uint64_t, kNumStatusCodes> ends = {};  // Of requests, by code.
  FaultCounts faults = {};
  std::set<std::string> retry_reasons;
  // From the last fault to the end of the last request.
  absl::Duration longest_recovery;
  uint64_t log_hash = 0;

  SystemResult& operator+=(const SystemResult& other);
};

// One line of key value text.
std::string ToString(const SystemResult& result);

}  // namespace baton

#endif  // BATON_TESTS_SIMULATION_SYSTEM_SYSTEM_RESULT_H_
