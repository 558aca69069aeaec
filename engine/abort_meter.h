// How long blocks stay taken that nobody wants any more.
#ifndef BATON_ENGINE_ABORT_METER_H_
#define BATON_ENGINE_ABORT_METER_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <utility>

#include "absl/time/time.h"
#include "engine/engine_options.h"
#include "engine/ids.h"
#include "engine/sequence.h"

namespace baton {

// From the arrival of an abort, or a deadline, to the end of the last launched
// step that may touch the sequence's blocks, and of their transfer. Stamp:
// thread-safe; everything else: the engine thread.
class AbortMeter {
 public:
  using Observer = std::function<void(const AbortStats&)>;

  explicit AbortMeter(Observer observer) : observer_(std::move(observer)) {}

  // An abort that arrives now.
  UnwantedSince Stamp(absl::Time now) const {
    return {.time = now, .newest_step = StepId(newest_step_.load())};
  }
  // A deadline that has passed.
  UnwantedSince StampOf(absl::Time deadline) const {
    const uint64_t newest = newest_step_.load();
    // Looked after between any two launches.
    return {.time = deadline,
            .newest_step = StepId(newest - (launch_time_ > deadline))};
  }

  void OnLaunch(StepId step, absl::Time now) {
    newest_step_.store(step.value());
    launch_time_ = now;
  }
  // The sequence and all that was its own are given up.
  void OnFree(const SequenceMetadata& sequence, absl::Time now) const {
    if (!sequence.unwanted.has_value() || !observer_) return;
    const UnwantedSince& since = *sequence.unwanted;
    observer_({.time = now - since.time,
               .steps = newest_step_.load() - since.newest_step.value()});
  }

 private:
  const Observer observer_;
  std::atomic<uint64_t> newest_step_{0};
  absl::Time launch_time_ = absl::InfinitePast();
};

}  // namespace baton

#endif  // BATON_ENGINE_ABORT_METER_H_
