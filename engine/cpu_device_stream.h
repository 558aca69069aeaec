// A device stream whose device is whichever thread calls Poll().
#ifndef BATON_ENGINE_CPU_DEVICE_STREAM_H_
#define BATON_ENGINE_CPU_DEVICE_STREAM_H_

#include <array>
#include <atomic>
#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "engine/device_stream.h"

namespace baton {

// One engine thread enqueues; one device thread polls, which may be the same.
// A ring of tasks, so nothing is allocated; dies when more than kMaxTasks wait.
class CpuDeviceStream final : public DeviceStream {
 public:
  static constexpr uint64_t kMaxTasks = 64;

  void Enqueue(DeviceTask task) override;
  DeviceEvent RecordEvent() override;
  bool HasFired(DeviceEvent event) const override;
  // Runs the oldest task to its end.
  bool Poll() override;

 private:
  std::atomic<uint64_t> done_{0};
  absl::Mutex mutex_;
  std::array<DeviceTask, kMaxTasks> tasks_ ABSL_GUARDED_BY(mutex_);
  uint64_t enqueued_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t started_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace baton

#endif  // BATON_ENGINE_CPU_DEVICE_STREAM_H_
