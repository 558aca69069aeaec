// How many attempts all requests together may have beyond their first ones.
//
// Where workers fail under load, tries again are more load: when every request
// has two, a system that is a little too small becomes one that does nothing.
// So tries from the start are a share of the requests of the last seconds. A
// floor lets a small system, or one that has just started, try again all the
// same.
//
// A stream that goes on from tokens that its client has been told is no such
// try, nor is one of the same request that has none yet: there is nobody who
// could send it again, and a worker that dies takes all its streams with it at
// once, however few requests came lately. Its allowance is a multiple of the
// streams that are under way: all of them can go on, and again when the next
// workers die too. That is finite, because each time prompt and answer are
// computed again: workers that break every stream after a token would keep the
// others busy for ever.
//
// What a live worker hands back, since it drains or is full while the stream
// has tokens, is neither: it has done nothing for it, and pauses and
// --worker_wait bound how often that is. A request without tokens that a full
// worker refuses is tried elsewhere at once, so that is a try.
#ifndef BATON_SERVER_ROUTER_RETRY_BUDGET_H_
#define BATON_SERVER_ROUTER_RETRY_BUDGET_H_

#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/router/windowed_count.h"

namespace baton {

// Thread-safe. Times are of one clock.
class RetryBudget final {
 public:
  struct Options {
    absl::Duration window = absl::Seconds(10);
    // Tries again within a window, in parts of the requests that began within
    // it, and at least so many.
    double retry_share = 0.2;
    uint32_t min_retries = 100;
    // Resumes within a window, for each stream that is under way; and at least
    // so many.
    double resumes_per_stream = 8;
    uint32_t min_resumes = 1000;
  };

  explicit RetryBudget(const Options& options);

  // A request has begun, with a stream a sample.
  void OnBegan(uint32_t num_streams, absl::Time now)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void OnEnded(uint32_t num_streams) ABSL_LOCKS_EXCLUDED(mutex_);

  // False: there are none left. True: it counts.
  bool TakeRetry(absl::Time now) ABSL_LOCKS_EXCLUDED(mutex_);
  bool TakeResume(absl::Time now) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  const Options options_;

  absl::Mutex mutex_;
  int64_t num_streams_ ABSL_GUARDED_BY(mutex_) = 0;  // Under way.
  WindowedCount requests_ ABSL_GUARDED_BY(mutex_);
  WindowedCount retries_ ABSL_GUARDED_BY(mutex_);
  WindowedCount resumes_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace baton

#endif  // BATON_SERVER_ROUTER_RETRY_BUDGET_H_
