#include "server/background_thread.h"

#include <sys/resource.h>

#include <memory>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace baton {
namespace {

using ::testing::ElementsAre;

TEST(BackgroundThreadTest, RunsTasksInOrderAndGivesWay) {
  std::vector<int> done;
  int nice = 0;
  absl::Notification all;
  BackgroundThread thread;
  thread.Run([&] { done.push_back(1); });
  thread.Run([&] { nice = getpriority(PRIO_PROCESS, 0); });
  thread.Run([&] {
    done.push_back(2);
    all.Notify();
  });
  all.WaitForNotification();
  thread.Stop();  // Joins: what the tasks wrote is this thread's to read.
  EXPECT_THAT(done, ElementsAre(1, 2));
  EXPECT_EQ(nice, 19);
  EXPECT_EQ(getpriority(PRIO_PROCESS, 0), 0);  // This thread's own.
}

TEST(BackgroundThreadTest, EndsBehindTheTaskThatRuns) {
  absl::Notification runs;
  bool ended_early = false;
  bool other = false;
  {
    BackgroundThread thread;
    thread.Run([&] {
      runs.Notify();
      while (!thread.stopping()) {
      }
      ended_early = true;
    });
    thread.Run([&] { other = true; });
    runs.WaitForNotification();
  }
  EXPECT_TRUE(ended_early);
  EXPECT_FALSE(other);
}

}  // namespace
}  // namespace baton
