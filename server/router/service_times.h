// What requests took lately, and what one that comes now takes at least.
#ifndef BATON_SERVER_ROUTER_SERVICE_TIMES_H_
#define BATON_SERVER_ROUTER_SERVICE_TIMES_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace baton {

// Thread-safe. Bounds are optimistic, so that who is refused by them had no
// chance; they are 0 as long as too few requests have ended lately.
class ServiceTimes final {
 public:
  // Of each kind the newest so many count, none older than kMaxAge: else a
  // prompt that is refused for its length would be refused for ever.
  static constexpr size_t kNumSamples = 64;
  static constexpr size_t kMinSamples = 8;
  static constexpr absl::Duration kMaxAge = absl::Seconds(30);

  // A request has ended well, `time` after its turn had come, and has had its
  // place all the time. Its prompt's first token took `prefill_time` from its
  // first chunk on, be it computed or found in a cache.
  void OnServed(absl::Duration time, absl::Time now)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void OnPrefilled(uint32_t prompt_tokens, absl::Duration prefill_time,
                   absl::Time now) ABSL_LOCKS_EXCLUDED(mutex_);

  // Until it is the turn of a request behind `num_ahead` others, if all of
  // these are as short as the shortest tenth was.
  absl::Duration LeastQueueTime(uint32_t num_ahead, uint32_t num_slots,
                                absl::Time now) const
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Of a prompt as fast as the fastest of those at least half as long; of the
  // time of a longer one the share of its attention, the square of that of its
  // tokens.
  absl::Duration LeastPrefillTime(uint32_t prompt_tokens, absl::Time now) const
      ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Served {
    absl::Time end = absl::InfinitePast();
    absl::Duration time;
  };
  struct Prefilled {
    absl::Time end = absl::InfinitePast();
    uint32_t prompt_tokens = 0;
    absl::Duration time;
  };

  mutable absl::Mutex mutex_;
  // The next one takes the place of the oldest.
  std::array<Served, kNumSamples> served_ ABSL_GUARDED_BY(mutex_);
  std::array<Prefilled, kNumSamples> prefilled_ ABSL_GUARDED_BY(mutex_);
  size_t num_served_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t num_prefilled_ ABSL_GUARDED_BY(mutex_) = 0;
};

// Why a request with so much time left is refused at once, or OK. The queue's
// and its prompt's times are the least that they can be.
//   DEADLINE_EXCEEDED   it has passed; or its prompt alone takes longer:
//                       PROMPT_TOO_LONG
//   RESOURCE_EXHAUSTED  with the queue it does: QUEUE_TOO_LONG, and when to
//                       come back
absl::Status CheckTimeLeft(absl::Duration left, absl::Duration queue_time,
                           absl::Duration prefill_time);

}  // namespace baton

#endif  // BATON_SERVER_ROUTER_SERVICE_TIMES_H_
