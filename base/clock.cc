#include "base/clock.h"

#include <time.h>

namespace baton {

absl::Time MonotonicClock::Now() const {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return absl::TimeFromTimespec(now);
}

}  // namespace baton
