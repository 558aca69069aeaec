#include "engine/cpu_device_stream.h"

#include "base/logging.h"

namespace baton {

void CpuDeviceStream::Enqueue(DeviceTask task) {
  absl::MutexLock lock(&mutex_);
  CHECK_LT(enqueued_ - started_, kMaxTasks) << "tasks wait on the device";
  tasks_[enqueued_ % kMaxTasks] = task;
  ++enqueued_;
}

DeviceEvent CpuDeviceStream::RecordEvent() {
  absl::MutexLock lock(&mutex_);
  return DeviceEvent(enqueued_);
}

bool CpuDeviceStream::HasFired(DeviceEvent event) const {
  return done_.load(std::memory_order_acquire) >= event.value();
}

bool CpuDeviceStream::Poll() {
  DeviceTask task;
  {
    absl::MutexLock lock(&mutex_);
    if (started_ == enqueued_) return false;
    task = tasks_[started_ % kMaxTasks];
    ++started_;
  }
  task.run(task.argument);
  done_.fetch_add(1, std::memory_order_release);
  return true;
}

}  // namespace baton
