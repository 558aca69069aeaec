// A device stream whose tasks take simulated time.
#ifndef BATON_TESTS_FAKES_FAKE_DEVICE_STREAM_H_
#define BATON_TESTS_FAKES_FAKE_DEVICE_STREAM_H_

#include <cstdint>
#include <deque>

#include "absl/time/time.h"
#include "engine/device_stream.h"
#include "tests/fakes/simulated_clock.h"

namespace baton {

// One thread. A task runs at its end: in the first Poll() after the clock has
// passed the end of the task before it by `task_time`.
class FakeDeviceStream final : public DeviceStream {
 public:
  // Borrows the clock.
  FakeDeviceStream(const SimulatedClock* clock, absl::Duration task_time)
      : clock_(clock), task_time_(task_time) {}

  // Of tasks enqueued from now on.
  void set_task_time(absl::Duration task_time) { task_time_ = task_time; }

  void Enqueue(DeviceTask task) override;
  DeviceEvent RecordEvent() override { return DeviceEvent(enqueued_); }
  bool HasFired(DeviceEvent event) const override {
    return enqueued_ - tasks_.size() >= event.value();
  }
  bool Poll() override;

 private:
  struct TimedTask {
    DeviceTask task;
    absl::Time end;
  };

  const SimulatedClock* const clock_;
  absl::Duration task_time_;
  std::deque<TimedTask> tasks_;
  uint64_t enqueued_ = 0;
};

}  // namespace baton

#endif  // BATON_TESTS_FAKES_FAKE_DEVICE_STREAM_H_
