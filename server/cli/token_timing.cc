#include "server/cli/token_timing.h"

#include <optional>

namespace baton {

TokenTiming MeasureTokens(absl::Time sent, absl::Time ended,
                          const std::vector<TokenArrival>& arrivals) {
  TokenTiming timing;
  timing.e2e = ended - sent;
  std::optional<absl::Time> previous;
  for (const TokenArrival& arrival : arrivals) {
    for (size_t i = 0; i < arrival.num_tokens; ++i) {
      if (previous.has_value()) {
        timing.itl.push_back(arrival.time - *previous);
      } else {
        timing.ttft = arrival.time - sent;
      }
      previous = arrival.time;
    }
    timing.num_tokens += arrival.num_tokens;
  }
  if (timing.num_tokens > 1) {
    timing.tpot = (timing.e2e - timing.ttft) /
                  static_cast<int64_t>(timing.num_tokens - 1);
  }
  return timing;
}

}  // namespace baton
