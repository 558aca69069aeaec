#include "tests/fakes/fake_device_stream.h"

#include <algorithm>

namespace baton {

void FakeDeviceStream::Enqueue(DeviceTask task) {
  absl::Time start = clock_->Now();
  if (!tasks_.empty()) start = std::max(start, tasks_.back().end);
  tasks_.push_back({task, start + task_time_});
  ++enqueued_;
}

bool FakeDeviceStream::Poll() {
  if (tasks_.empty() || clock_->Now() < tasks_.front().end) return false;
  const DeviceTask task = tasks_.front().task;
  task.run(task.argument);
  tasks_.pop_front();
  return true;
}

}  // namespace baton
