// Tells how to repeat what ended the process.
#ifndef BATON_TESTS_SIMULATION_COMMAND_ON_DEATH_H_
#define BATON_TESTS_SIMULATION_COMMAND_ON_DEATH_H_

#include <string_view>

namespace baton {

// From now on a failed CHECK, a bad access or a sanitizer's report is followed
// by this line on stderr. Cut at 200 characters. Thread-compatible.
void PrintOnDeath(std::string_view command);

}  // namespace baton

#endif  // BATON_TESTS_SIMULATION_COMMAND_ON_DEATH_H_
