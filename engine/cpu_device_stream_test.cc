#include "engine/cpu_device_stream.h"

#include <atomic>
#include <thread>

#include "gtest/gtest.h"

namespace baton {
namespace {

void Increment(void* counter) { ++*static_cast<int*>(counter); }

TEST(CpuDeviceStreamTest, AnEventFiresWhenAllBeforeItIsDone) {
  CpuDeviceStream stream;
  int counter = 0;
  EXPECT_TRUE(stream.HasFired(stream.RecordEvent()));
  stream.Enqueue({&Increment, &counter});
  stream.Enqueue({&Increment, &counter});
  const DeviceEvent second = stream.RecordEvent();
  stream.Enqueue({&Increment, &counter});
  EXPECT_TRUE(stream.Poll());
  EXPECT_FALSE(stream.HasFired(second));
  EXPECT_TRUE(stream.Poll());
  EXPECT_TRUE(stream.HasFired(second));
  EXPECT_EQ(counter, 2);
  EXPECT_TRUE(stream.Poll());
  EXPECT_FALSE(stream.Poll());
}

TEST(CpuDeviceStreamTest, MoreTasksThanItsLimitDie) {
  CpuDeviceStream stream;
  int counter = 0;
  for (uint64_t i = 0; i < CpuDeviceStream::kMaxTasks; ++i) {
    stream.Enqueue({&Increment, &counter});
  }
  EXPECT_DEATH(stream.Enqueue({&Increment, &counter}), "CHECK");
}

TEST(CpuDeviceStreamTest, ADeviceThreadDoesWhatAnotherEnqueues) {
  constexpr int kTasks = 2000;
  CpuDeviceStream stream;
  std::atomic<bool> over = false;
  std::thread device([&] {
    while (!over) {
      if (!stream.Poll()) std::this_thread::yield();
    }
  });
  int counter = 0;  // Handed over by the stream alone.
  for (int i = 1; i <= kTasks; ++i) {
    stream.Enqueue({&Increment, &counter});
    const DeviceEvent event = stream.RecordEvent();
    while (!stream.HasFired(event)) std::this_thread::yield();
    ASSERT_EQ(counter, i);
  }
  over = true;
  device.join();
}

}  // namespace
}  // namespace baton
