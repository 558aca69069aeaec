// A clock that moves when a test moves it.
#ifndef BATON_TESTS_FAKES_SIMULATED_CLOCK_H_
#define BATON_TESTS_FAKES_SIMULATED_CLOCK_H_

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/clock.h"

namespace baton {

// Thread-safe.
class SimulatedClock final : public Clock {
 public:
  absl::Time Now() const override {
    absl::MutexLock lock(&mutex_);
    return now_;
  }
  void Advance(absl::Duration duration) {
    absl::MutexLock lock(&mutex_);
    now_ += duration;
  }

 private:
  mutable absl::Mutex mutex_;
  absl::Time now_ ABSL_GUARDED_BY(mutex_) = absl::UnixEpoch();
};

}  // namespace baton

#endif  // BATON_TESTS_FAKES_SIMULATED_CLOCK_H_
