// What `baton local up` can be told.
#ifndef BATON_SERVER_CLI_LOCAL_UP_OPTIONS_H_
#define BATON_SERVER_CLI_LOCAL_UP_OPTIONS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/edge/config.h"

namespace baton {

struct LocalUpOptions {
  std::string model = {};
  std::optional<uint32_t> prefill = {};  // Absent: 1.
  std::optional<uint32_t> decode = {};   // Likewise.
  bool unified = false;
  // Ranks of the expert-parallel group of each worker, by role.
  uint32_t prefill_ep = 1;
  uint32_t decode_ep = 1;
  uint32_t unified_ep = 1;
  // Processes that each worker's ranks are split over, evenly.
  uint32_t prefill_processes = 1;
  uint32_t decode_processes = 1;
  uint32_t unified_processes = 1;
  std::string router_listen = "127.0.0.1:0";
  std::string bin_dir = {};
  std::vector<std::string> worker_flags = {};
  std::vector<std::string> router_flags = {};
  std::string ready_file = {};
  std::string log_dir = {};
  absl::Duration start_timeout = absl::Minutes(2);
  // More than the servers' own --drain_grace.
  absl::Duration grace = absl::Seconds(30);
};

void AddLocalUpFlags(Flags& flags, LocalUpOptions* options);
absl::Status ValidateLocalUp(const LocalUpOptions& options);

}  // namespace baton

#endif  // BATON_SERVER_CLI_LOCAL_UP_OPTIONS_H_
