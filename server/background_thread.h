// A thread for what may take its time.
#ifndef BATON_SERVER_BACKGROUND_THREAD_H_
#define BATON_SERVER_BACKGROUND_THREAD_H_

#include <atomic>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "base/mpsc_queue.h"

namespace baton {

// Thread-safe. Runs tasks in order, at the lowest nice value: it gives way to
// the threads that take steps, and still moves on where these leave no CPU
// idle. (SCHED_IDLE would then hardly ever run, also while it holds a lock that
// one of them waits for.)
class BackgroundThread final {
 public:
  BackgroundThread();
  ~BackgroundThread() { Stop(); }
  BackgroundThread(const BackgroundThread&) = delete;
  BackgroundThread& operator=(const BackgroundThread&) = delete;

  void Run(std::function<void()> task) { tasks_.Push(std::move(task)); }
  // Waits for the task that runs; those behind it never run. Once, or by the
  // destructor.
  void Stop();
  // Somebody waits: for a task that can end early.
  bool stopping() const { return stop_.load(); }

 private:
  void RunTasks();

  std::atomic<bool> stop_{false};
  MpscQueue<std::function<void()>> tasks_;
  std::thread thread_;
};

}  // namespace baton

#endif  // BATON_SERVER_BACKGROUND_THREAD_H_
