// `baton bench`: load on a running router.
#ifndef BATON_SERVER_CLI_BENCH_H_
#define BATON_SERVER_CLI_BENCH_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/cli/bench_report.h"
#include "server/cli/console.h"
#include "server/cli/request_flags.h"
#include "server/edge/config.h"

namespace baton {

struct BenchOptions {
  std::string router = kDefaultRouter;
  absl::Duration timeout = absl::Minutes(10);
  std::vector<std::string> clients;  // Of a closed loop; empty: 1, 16, 32.
  std::vector<std::string> rate;     // Not empty: an open loop.
  std::string trace;                 // The same.
  uint32_t requests = 0;  // 0: four for each client, or thirty seconds' worth.
  uint32_t prompt_tokens = 128;
  uint32_t max_tokens = 128;
  uint32_t divide_lengths = 1;  // Of a trace.
  double temperature = 0;
  uint64_t seed = 0;
  std::optional<uint32_t> n;
  LatencyLimits limits = {};  // Of goodput.
  std::vector<std::string> pids;
  std::string json_out;
  bool sweep = false;
  std::optional<std::string> svg_out;
};

// What --help says of the figures.
extern const char kBenchDescription[];

void AddBenchFlags(Flags& flags, BenchOptions* options);
absl::Status ValidateBench(const BenchOptions& options);
// The exit code: 0 if no request failed.
int RunBench(const BenchOptions& options, const Console& console);

}  // namespace baton

#endif  // BATON_SERVER_CLI_BENCH_H_
