// `baton drain`: asks a process to finish its work and end, and waits for that.
#ifndef BATON_SERVER_CLI_DRAIN_H_
#define BATON_SERVER_CLI_DRAIN_H_

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/cli/console.h"
#include "server/edge/config.h"

namespace baton {

struct DrainOptions {
  std::string endpoint = {};  // host:port
  std::optional<absl::Duration> grace = {};
  absl::Duration timeout = absl::Minutes(2);
  absl::Duration interval = absl::Seconds(1);
  std::string admin_token_file = {};
};

inline constexpr char kDrainDescription[] =
    "Asks a router or worker to finish its work and end; waits for that.";

void AddDrainFlags(Flags& flags, DrainOptions* options);
absl::Status ValidateDrain(const DrainOptions& options);
// 0 when the process is gone.
int RunDrain(const DrainOptions& options, const Console& console);

}  // namespace baton

#endif  // BATON_SERVER_CLI_DRAIN_H_
