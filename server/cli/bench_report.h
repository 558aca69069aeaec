// Percentiles, and the table and JSON that `baton bench` ends with. Pure.
#ifndef BATON_SERVER_CLI_BENCH_REPORT_H_
#define BATON_SERVER_CLI_BENCH_REPORT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "nlohmann/json.hpp"
#include "server/cli/plot.h"
#include "server/cli/process_cpu.h"
#include "server/cli/token_timing.h"

namespace baton {

// Nearest rank: the smallest value that at least `percent` of all are not
// above. `values` are sorted; 0 of none.
absl::Duration Percentile(const std::vector<absl::Duration>& values,
                          double percent);

// What a user still calls good.
struct LatencyLimits {
  absl::Duration ttft = absl::InfiniteDuration();
  absl::Duration tpot = absl::InfiniteDuration();
};

// What one level of load gave.
struct BenchLevel {
  LatencyLimits limits = {};
  uint32_t clients = 0;  // 0: an open loop.
  double rate = 0;       // Open: requests sent a second, in the mean.
  uint32_t failed_requests = 0;
  absl::Duration wall_time = absl::ZeroDuration();
  absl::Duration client_cpu_time = absl::ZeroDuration();
  // Those given by --pids that are there at its end: the CPU time of this
  // level, the memory at its end.
  std::vector<ProcessUsage> servers = {};
  std::vector<TokenTiming> requests = {};  // Those that went well.
};

// "16 clients" or "2.5/s".
std::string LoadName(const BenchLevel& level);
nlohmann::json LevelJson(const BenchLevel& level);
// With a line for each level, and under it one on who used the CPU.
std::string ReportTable(const std::vector<BenchLevel>& levels);
// Throughput against what one user sees: decode and prefill. A level without a
// median for a plot is not in it.
std::vector<Plot> SweepPlots(const std::vector<BenchLevel>& levels);

}  // namespace baton

#endif  // BATON_SERVER_CLI_BENCH_REPORT_H_
