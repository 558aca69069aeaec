// Where a command reads and writes: the terminal in main, strings in tests.
#ifndef BATON_SERVER_CLI_CONSOLE_H_
#define BATON_SERVER_CLI_CONSOLE_H_

#include <istream>
#include <ostream>

namespace baton {

// Exit codes of `baton`.
inline constexpr int kExitOk = 0;
inline constexpr int kExitFailed = 1;
inline constexpr int kExitUsage = 2;

// Borrowed. `out` gets what was asked for, `err` all that is about it.
struct Console {
  std::istream& in;
  std::ostream& out;
  std::ostream& err;
};

}  // namespace baton

#endif  // BATON_SERVER_CLI_CONSOLE_H_
