// The thread that is the device, where that is a CPU.
#ifndef BATON_SERVER_DEVICE_THREAD_H_
#define BATON_SERVER_DEVICE_THREAD_H_

#include <atomic>
#include <thread>

#include "engine/cpu_device_stream.h"

namespace baton {

// Runs the stream's tasks, so that the engine plans while a step runs. Blocks
// when there is none.
class DeviceThread {
 public:
  // Borrows the stream, which must outlive it.
  explicit DeviceThread(CpuDeviceStream* stream);
  // REQUIRES: no task is left that somebody waits for.
  ~DeviceThread();
  DeviceThread(const DeviceThread&) = delete;
  DeviceThread& operator=(const DeviceThread&) = delete;

 private:
  void Run();

  CpuDeviceStream* const stream_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace baton

#endif  // BATON_SERVER_DEVICE_THREAD_H_
