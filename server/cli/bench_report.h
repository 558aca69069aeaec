// Percentiles, and the table and JSON that `baton bench` ends with. Pure.
#ifndef BATON_SERVER_CLI_BENCH_REPORT_H_
#define BATON_SERVER_CLI_BENCH_REPORT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "nlohmann/json.hpp"
#include "server/cli/token_timing.h"

namespace baton {

// Nearest rank: the smallest value that at least `percent` of all are not
// above. `values` are sorted; 0 of none.
absl::Duration Percentile(const std::vector<absl::Duration>& values,
                          double percent);

// What one level of concurrency gave.
struct BenchLevel {
  uint32_t clients = 0;
  uint32_t failed_requests = 0;
  absl::Duration wall_time = absl::ZeroDuration();
  absl::Duration client_cpu_time = absl::ZeroDuration();
  // Of the processes given by --pids, and their memory at the end.
  std::optional<absl::Duration> server_cpu_time = std::nullopt;
  uint64_t server_resident_bytes = 0;
  std::vector<TokenTiming> requests = {};  // Those that went well.
};

nlohmann::json LevelJson(const BenchLevel& level);
std::string ReportTable(const std::vector<BenchLevel>& levels);

}  // namespace baton

#endif  // BATON_SERVER_CLI_BENCH_REPORT_H_
