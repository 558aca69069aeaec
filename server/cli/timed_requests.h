// When an open loop sends its requests, and how long they are. Pure, but for
// the file.
#ifndef BATON_SERVER_CLI_TIMED_REQUESTS_H_
#define BATON_SERVER_CLI_TIMED_REQUESTS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace baton {

struct RequestShape {
  uint32_t prompt_tokens = 0;
  uint32_t max_tokens = 0;
};

struct TimedRequest {
  absl::Duration send = {};  // From the start; ascending.
  RequestShape shape = {};
  // Names of the prompt's blocks of block_tokens each, the last one perhaps in
  // part: equal names are equal tokens. Empty: nothing is known of them.
  std::vector<uint64_t> blocks = {};
  uint32_t block_tokens = 0;
};

// How the lengths in a trace become those sent.
struct TraceLengths {
  // First divided by this, blocks too, then cut to the bound; at least 1.
  uint32_t divisor = 1;
  RequestShape bound = {};
};

// A Poisson process: gaps are exponential with mean 1 / rate, the first one
// too. The same for the same seed. REQUIRES: rate, per second, above 0.
std::vector<TimedRequest> PoissonRequests(double rate, uint32_t count,
                                          uint64_t seed, RequestShape shape);

// The first `limit` (0: all) requests of a trace, from its first one's time on:
//   CSV of the Azure LLM inference traces, with the header
//     TIMESTAMP,ContextTokens,GeneratedTokens
//   JSON lines of the Mooncake traces: timestamp (ms), input_length,
//     output_length, and perhaps hash_ids, names of blocks of 512 tokens
// An error names the line.
absl::StatusOr<std::vector<TimedRequest>> ReadTrace(
    const std::string& path, uint32_t limit, const TraceLengths& lengths);

// Stretches time so that the mean gap is 1 / rate. REQUIRES: rate above 0.
void ScaleToRate(double rate, std::vector<TimedRequest>* requests);
// Requests a second; 0 of fewer than two, or of no time.
double MeanRate(const std::vector<TimedRequest>& requests);

}  // namespace baton

#endif  // BATON_SERVER_CLI_TIMED_REQUESTS_H_
