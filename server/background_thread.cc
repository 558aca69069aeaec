#include "server/background_thread.h"

#include <sys/resource.h>

#include "absl/time/time.h"
#include "base/logging.h"

namespace baton {
namespace {

// Tasks and the end wake it.
constexpr absl::Duration kIdleWait = absl::Hours(1);
constexpr int kLowest = 19;

}  // namespace

BackgroundThread::BackgroundThread() : thread_([this] { RunTasks(); }) {}

void BackgroundThread::Stop() {
  if (!thread_.joinable()) return;
  stop_.store(true);
  tasks_.Wake();
  thread_.join();
}

void BackgroundThread::RunTasks() {
  // Of this thread alone, on Linux. Lowering it is always allowed.
  CHECK_EQ(setpriority(PRIO_PROCESS, 0, kLowest), 0);
  std::vector<std::function<void()>> tasks;
  while (!stop_.load()) {
    tasks_.Drain(&tasks);
    for (const std::function<void()>& task : tasks) {
      if (stop_.load()) return;
      task();
    }
    if (tasks.empty()) tasks_.WaitForItem(kIdleWait);
  }
}

}  // namespace baton
