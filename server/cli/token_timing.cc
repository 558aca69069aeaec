#include "server/cli/token_timing.h"

#include <algorithm>
#include <map>

namespace baton {

TokenTiming MeasureTokens(absl::Time sent, absl::Time ended,
                          const std::vector<TokenArrival>& arrivals) {
  struct Sample {
    absl::Time last;
    size_t num_tokens = 0;
  };
  TokenTiming timing;
  timing.e2e = ended - sent;
  std::map<uint32_t, Sample> samples;
  uint32_t first_sample = 0;
  size_t longest = 0;
  for (const TokenArrival& arrival : arrivals) {
    Sample& sample = samples[arrival.sample_index];
    for (size_t i = 0; i < arrival.num_tokens; ++i) {
      if (timing.num_tokens++ == 0) {
        timing.ttft = arrival.time - sent;
        first_sample = arrival.sample_index;
      }
      if (sample.num_tokens++ > 0) {
        timing.itl.push_back(arrival.time - sample.last);
      }
      if (sample.num_tokens == 2 && arrival.sample_index == first_sample) {
        timing.ttst = timing.itl.back();
      }
      sample.last = arrival.time;
    }
    longest = std::max(longest, sample.num_tokens);
  }
  if (longest > 1) {
    timing.tpot =
        (timing.e2e - timing.ttft) / static_cast<int64_t>(longest - 1);
  }
  return timing;
}

}  // namespace baton
