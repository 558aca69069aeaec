// How much there was of something within the last while.
#ifndef BATON_SERVER_ROUTER_WINDOWED_COUNT_H_
#define BATON_SERVER_ROUTER_WINDOWED_COUNT_H_

#include <array>
#include <cstdint>

#include "absl/time/time.h"

namespace baton {

// Counts in ten buckets, the oldest of which is dropped as a whole: what is
// between nine tenths and all of the window old may be counted or not. Times
// are of one clock that never goes backwards. Thread-compatible.
class WindowedCount final {
 public:
  // REQUIRES: at least 10 ns.
  explicit WindowedCount(absl::Duration window);

  void Add(absl::Time now, int64_t count);
  int64_t Sum(absl::Time now);
  void Clear() { buckets_ = {}; }

 private:
  static constexpr int kNumBuckets = 10;

  // Drops what is too old by now.
  void Advance(absl::Time now);

  const absl::Duration bucket_length_;
  int64_t newest_ = 0;  // Number of the bucket, from the epoch on.
  std::array<int64_t, kNumBuckets> buckets_ = {};  // By number, modulo.
};

}  // namespace baton

#endif  // BATON_SERVER_ROUTER_WINDOWED_COUNT_H_
