// `baton local up`: workers and a router on this machine, as one command.
#ifndef BATON_SERVER_CLI_LOCAL_UP_H_
#define BATON_SERVER_CLI_LOCAL_UP_H_

#include "server/cli/console.h"
#include "server/cli/local_up_options.h"

namespace baton {

// Starts the processes, says when they are ready, and runs until SIGINT or
// SIGTERM, 0, or until one of them ends, its exit code. Nothing is left behind.
// Blocks those signals for good; REQUIRES: no other threads.
int RunLocalUp(const LocalUpOptions& options, const Console& console);

}  // namespace baton

#endif  // BATON_SERVER_CLI_LOCAL_UP_H_
