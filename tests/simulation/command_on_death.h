// Tells how to repeat what ended the process, and what it logged before.
#ifndef BATON_TESTS_SIMULATION_COMMAND_ON_DEATH_H_
#define BATON_TESTS_SIMULATION_COMMAND_ON_DEATH_H_

#include <string_view>

namespace baton {

// From now on a failed CHECK, a bad access or a sanitizer's report is followed
// by this line on stderr. Cut at 200 characters. Thread-compatible.
void PrintOnDeath(std::string_view command);

// While it lives what is written to stderr is kept aside; it comes out if the
// process dies, before the command, and else is forgotten. REQUIRES:
// PrintOnDeath was called; there is no other one.
class HeldStderr final {
 public:
  HeldStderr();
  ~HeldStderr();
  HeldStderr(const HeldStderr&) = delete;
  HeldStderr& operator=(const HeldStderr&) = delete;
};

}  // namespace baton

#endif  // BATON_TESTS_SIMULATION_COMMAND_ON_DEATH_H_
