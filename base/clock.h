// The one source of time for what may not read the system's clock itself.
#ifndef BATON_BASE_CLOCK_H_
#define BATON_BASE_CLOCK_H_

#include "absl/time/time.h"

namespace baton {

// Thread-safe. tests/fakes/simulated_clock.h is the second implementation.
class Clock {
 public:
  virtual ~Clock() = default;
  // Never goes backwards; only differences mean anything.
  virtual absl::Time Now() const = 0;
};

// CLOCK_MONOTONIC.
class MonotonicClock final : public Clock {
 public:
  absl::Time Now() const override;
};

}  // namespace baton

#endif  // BATON_BASE_CLOCK_H_
