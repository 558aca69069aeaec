// The latencies of one streamed generation, from the times its tokens arrived.
#ifndef BATON_SERVER_CLI_TOKEN_TIMING_H_
#define BATON_SERVER_CLI_TOKEN_TIMING_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/time/time.h"

namespace baton {

// One message of a stream: its tokens arrived together.
struct TokenArrival {
  absl::Time time;
  size_t num_tokens = 0;
  uint32_t sample_index = 0;
};

// TTFT  first token, of any sample, minus send
// ITL   the gaps between successive token arrivals of a sample; tokens that
//       came in one message have gaps of 0 between them
// TTST  second token minus first one, of the sample that had the first one
// TPOT  (E2E - TTFT) / (output tokens of the longest sample - 1)
// E2E   the last message minus send
struct TokenTiming {
  size_t prompt_tokens = 0;  // Known to the sender alone.
  size_t num_tokens = 0;     // Of all samples.
  absl::Duration ttft = absl::ZeroDuration();
  // 0 where that sample has one token.
  absl::Duration ttst = absl::ZeroDuration();
  // 0 where no sample has two tokens.
  absl::Duration tpot = absl::ZeroDuration();
  absl::Duration e2e = absl::ZeroDuration();
  std::vector<absl::Duration> itl = {};
};

// `arrivals` in order; messages without tokens count for nothing.
TokenTiming MeasureTokens(absl::Time sent, absl::Time ended,
                          const std::vector<TokenArrival>& arrivals);

}  // namespace baton

#endif  // BATON_SERVER_CLI_TOKEN_TIMING_H_
