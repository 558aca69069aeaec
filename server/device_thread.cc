#include "server/device_thread.h"

#include "absl/time/time.h"

namespace baton {
namespace {

// Tasks and the end wake it; this bounds what a lost wake-up costs.
constexpr absl::Duration kIdleWait = absl::Seconds(1);

}  // namespace

DeviceThread::DeviceThread(CpuDeviceStream* stream)
    : stream_(stream), thread_([this] { Run(); }) {}

DeviceThread::~DeviceThread() {
  stop_.store(true);
  stream_->Wake();
  thread_.join();
}

void DeviceThread::Run() {
  while (!stop_.load()) {
    if (!stream_->Poll()) stream_->WaitForTask(kIdleWait);
  }
}

}  // namespace baton
