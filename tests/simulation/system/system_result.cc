#include "tests/simulation/system/system_result.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace baton {

SystemResult& SystemResult::operator+=(const SystemResult& other) {
  seeds += other.seeds;
  events += other.events;
  fewest_events = std::min(fewest_events, other.fewest_events);
  requests += other.requests;
  tokens += other.tokens;
  steps += other.steps;
  for (size_t i = 0; i < ends.size(); ++i) ends[i] += other.ends[i];
  for (size_t i = 0; i < faults.size(); ++i) faults[i] += other.faults[i];
  retry_reasons.insert(other.retry_reasons.begin(), other.retry_reasons.end());
  longest_recovery = std::max(longest_recovery, other.longest_recovery);
  log_hash = log_hash * 31 + other.log_hash;
  return *this;
}

std::string ToString(const SystemResult& result) {
  std::string text = absl::StrCat(
      "seeds ", result.seeds, " events ", result.events, " fewest_events ",
      result.fewest_events, " requests ", result.requests, " tokens ",
      result.tokens, " steps ", result.steps);
  for (size_t i = 0; i < result.ends.size(); ++i) {
    if (result.ends[i] == 0) continue;
    const std::string name =
        absl::StatusCodeToString(static_cast<absl::StatusCode>(i));
    absl::StrAppend(&text, " ", absl::AsciiStrToLower(name), " ",
                    result.ends[i]);
  }
  for (size_t i = 0; i < result.faults.size(); ++i) {
    absl::StrAppend(&text, " ", kFaultNames[i].data(), " ", result.faults[i]);
  }
  absl::StrAppend(
      &text, " retry_reasons ", absl::StrJoin(result.retry_reasons, ","),
      " longest_recovery ", absl::FormatDuration(result.longest_recovery),
      " log_hash ", absl::Hex(result.log_hash));
  return text;
}

}  // namespace baton
