#include "server/device_thread.h"

#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"

namespace baton {
namespace {

TEST(DeviceThreadTest, RunsTasksInOrderAndEndsWithoutOne) {
  struct Tasks {
    int done = 0;
    absl::Notification all;
  } tasks;
  CpuDeviceStream stream;
  {
    DeviceThread thread(&stream);
    for (int i = 0; i < 10; ++i) {
      stream.Enqueue({[](void* argument) {
                        auto* const mine = static_cast<Tasks*>(argument);
                        if (++mine->done == 10) mine->all.Notify();
                      },
                      &tasks});
    }
    tasks.all.WaitForNotification();
  }
  EXPECT_EQ(tasks.done, 10);
}

}  // namespace
}  // namespace baton
