// `baton health`: asks each endpoint's grpc.health.v1 service.
#ifndef BATON_SERVER_CLI_HEALTH_H_
#define BATON_SERVER_CLI_HEALTH_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/cli/console.h"
#include "server/edge/config.h"

namespace baton {

struct HealthOptions {
  std::string endpoints;  // host:port, more after commas
  std::string service;
  absl::Duration timeout = absl::Seconds(5);
};

void AddHealthFlags(Flags& flags, HealthOptions* options);
// 0 if every endpoint is SERVING.
int RunHealth(const HealthOptions& options, const Console& console);

// "SERVING", "NOT_SERVING", ...
absl::StatusOr<std::string> CheckHealth(const std::string& endpoint,
                                        const std::string& service,
                                        absl::Duration timeout);

}  // namespace baton

#endif  // BATON_SERVER_CLI_HEALTH_H_
