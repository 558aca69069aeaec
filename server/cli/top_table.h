// The tables of `baton top`.
#ifndef BATON_SERVER_CLI_TOP_TABLE_H_
#define BATON_SERVER_CLI_TOP_TABLE_H_

#include <string>
#include <vector>

#include "server/cli/worker_poll.h"

namespace baton {

// A line a rank and one for all of them; then, if there are groups, a line for
// each process of one. Every cell has a word without a space, "-" where there
// is nothing to say. Rates and mean waits are of the time from `before`, which
// may be empty, to `now`: of processes that were there then.
std::string TopTables(const std::vector<std::string>& endpoints,
                      const std::vector<WorkerSample>& before,
                      const std::vector<WorkerSample>& now);

}  // namespace baton

#endif  // BATON_SERVER_CLI_TOP_TABLE_H_
