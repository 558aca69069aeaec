// What happened in simulated groups, in numbers.
#ifndef BATON_TESTS_SIMULATION_GROUP_GROUP_RESULT_H_
#define BATON_TESTS_SIMULATION_GROUP_GROUP_RESULT_H_

#include <cstdint>
#include <string>

namespace baton {

struct GroupResult {
  uint64_t rank_steps = 0;  // Launched.
  uint64_t steps = 0;       // Of the group.
  uint64_t prefill_steps = 0;
  uint64_t empty_rank_steps = 0;
  uint64_t fallbacks = 0;  // A prefill was voted for, and nobody could.
  uint64_t sleeps = 0;
  uint64_t epochs = 0;
  uint64_t kills = 0;
  uint64_t stops = 0;
  uint64_t fences = 0;  // Of them, found by the watchdog.
  uint64_t late_messages = 0;
  uint64_t placement_switches = 0;
  uint64_t requests = 0;
  uint64_t handed_back = 0;
  uint64_t aborted = 0;
  uint64_t tokens = 0;
  // The most decode steps that a wish for a prefill waited.
  uint64_t longest_wish = 0;
  uint64_t livelocks = 0;

  GroupResult& operator+=(const GroupResult& other);
};

// One line of key value text.
std::string ToString(const GroupResult& result);

}  // namespace baton

#endif  // BATON_TESTS_SIMULATION_GROUP_GROUP_RESULT_H_
