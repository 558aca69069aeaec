#include "server/router/service_times.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/edge/grpc_status.h"

namespace baton {
namespace {

constexpr size_t kFastShare = 10;  // One in so many is as fast as that.

}  // namespace

void ServiceTimes::OnServed(absl::Duration time, absl::Time now) {
  absl::MutexLock lock(&mutex_);
  served_[num_served_++ % kNumSamples] = {.end = now, .time = time};
}

void ServiceTimes::OnPrefilled(uint32_t prompt_tokens,
                               absl::Duration prefill_time, absl::Time now) {
  absl::MutexLock lock(&mutex_);
  prefilled_[num_prefilled_++ % kNumSamples] = {
      .end = now, .prompt_tokens = prompt_tokens, .time = prefill_time};
}

absl::Duration ServiceTimes::LeastQueueTime(uint32_t num_ahead,
                                            uint32_t num_slots,
                                            absl::Time now) const {
  // Those at work may all be about to end.
  const uint32_t rounds = num_ahead / num_slots;
  if (rounds == 0) return absl::ZeroDuration();
  std::vector<absl::Duration> times;
  {
    absl::MutexLock lock(&mutex_);
    for (const Served& one : served_) {
      if (now - one.end <= kMaxAge) times.push_back(one.time);
    }
  }
  if (times.size() < kMinSamples) return absl::ZeroDuration();
  const auto fast = times.begin() + times.size() / kFastShare;
  std::nth_element(times.begin(), fast, times.end());
  return rounds * *fast;
}

absl::Duration ServiceTimes::LeastPrefillTime(uint32_t prompt_tokens,
                                              absl::Time now) const {
  size_t num_samples = 0;
  absl::Duration least = absl::InfiniteDuration();
  absl::MutexLock lock(&mutex_);
  for (const Prefilled& one : prefilled_) {
    if (now - one.end > kMaxAge || one.prompt_tokens < prompt_tokens / 2 ||
        one.prompt_tokens == 0) {
      continue;
    }
    ++num_samples;
    const double share = static_cast<double>(prompt_tokens) / one.prompt_tokens;
    least = std::min(least, std::min(share, share * share) * one.time);
  }
  return num_samples < kMinSamples ? absl::ZeroDuration() : least;
}

absl::Status CheckTimeLeft(absl::Duration left, absl::Duration queue_time,
                           absl::Duration prefill_time) {
  if (left <= absl::ZeroDuration()) {
    return absl::DeadlineExceededError("the deadline has passed");
  }
  if (prefill_time > left) {
    return WithReason(absl::DeadlineExceededError(absl::StrCat(
                          "the deadline is in ", absl::FormatDuration(left),
                          ", and the prompt takes at least ",
                          absl::FormatDuration(prefill_time))),
                      "PROMPT_TOO_LONG");
  }
  if (queue_time + prefill_time > left) {
    return WithRetryDelay(
        WithReason(absl::ResourceExhaustedError(absl::StrCat(
                       "the deadline is in ", absl::FormatDuration(left),
                       ", and the queue takes at least ",
                       absl::FormatDuration(queue_time))),
                   "QUEUE_TOO_LONG"),
        queue_time);
  }
  return absl::OkStatus();
}

}  // namespace baton
