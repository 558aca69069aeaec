// `baton top`: what workers do, live in the terminal or as plain tables.
#ifndef BATON_SERVER_CLI_TOP_H_
#define BATON_SERVER_CLI_TOP_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/cli/console.h"
#include "server/edge/config.h"

namespace baton {

struct TerminalSize {
  int columns = 0;
  int rows = 0;
};

struct TopOptions {
  std::vector<std::string> workers;  // host:port
  absl::Duration interval = absl::Seconds(2);
  absl::Duration timeout = absl::Seconds(2);
  bool once = false;
  uint32_t count = 0;
  // No flag. Set: the tables are drawn over each other on a terminal of this
  // size, which may change. Empty: plain tables, one after the other.
  std::function<TerminalSize()> terminal_size = {};
};

void AddTopFlags(Flags& flags, TopOptions* options);
absl::Status ValidateTop(const TopOptions& options);
// Until `count` tables are shown, or for ever. A worker that does not answer is
// a line that says so.
int RunTop(const TopOptions& options, const Console& console);

// Of the standard output, if that is a terminal, else empty.
std::function<TerminalSize()> StdoutTerminal();
// `text` cut to the terminal, over what was there.
std::string TerminalFrame(const std::string& text, const TerminalSize& size);

}  // namespace baton

#endif  // BATON_SERVER_CLI_TOP_H_
