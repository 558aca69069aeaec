#include "server/router/windowed_count.h"

#include <algorithm>
#include <numeric>

#include "base/logging.h"

namespace baton {

WindowedCount::WindowedCount(absl::Duration window)
    : bucket_length_(window / kNumBuckets) {
  CHECK_GT(bucket_length_, absl::ZeroDuration());
}

void WindowedCount::Add(absl::Time now, int64_t count) {
  Advance(now);
  buckets_[newest_ % kNumBuckets] += count;
}

int64_t WindowedCount::Sum(absl::Time now) {
  Advance(now);
  return std::accumulate(buckets_.begin(), buckets_.end(), int64_t{0});
}

void WindowedCount::Advance(absl::Time now) {
  absl::Duration rest;
  const int64_t number =
      absl::IDivDuration(now - absl::UnixEpoch(), bucket_length_, &rest);
  const int64_t num_new = std::min<int64_t>(number - newest_, kNumBuckets);
  for (int64_t i = 0; i < num_new; ++i) {
    buckets_[(number - i) % kNumBuckets] = 0;
  }
  newest_ = std::max(newest_, number);
}

}  // namespace baton
