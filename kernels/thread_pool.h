// A fork-join pool for kernels: the caller takes part, nothing is allocated.
#ifndef BATON_KERNELS_THREAD_POOL_H_
#define BATON_KERNELS_THREAD_POOL_H_

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace baton {

struct ThreadPoolOptions {
  int num_threads = 1;  // The caller is one of them; 1 starts no thread.
  // Worker i (from 1) runs on CPU i, modulo their number, of those that the
  // process may use. The calling thread is left alone.
  bool pin_threads = false;
};

// Owns its workers. Owned by one calling thread: one ParallelFor at a time, not
// from inside a body.
class ThreadPool final {
 public:
  explicit ThreadPool(const ThreadPoolOptions& options);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls body(i) once for each i in [0, num_items), on any thread, in any
  // order; returns when all calls have returned. The body must not throw.
  template <typename Body>
  void ParallelFor(int num_items, const Body& body) {
    Run(num_items, &body,
        [](const void* b, int item) { (*static_cast<const Body*>(b))(item); });
  }

 private:
  using Call = void (*)(const void* body, int item);

  void Run(int num_items, const void* body, Call call);
  void WorkerLoop();
  void RunItems();

  std::vector<std::thread> workers_;

  // A job is written by the caller while it is closed and nobody is inside. A
  // worker steps inside (num_inside_), then looks whether it is open; the
  // caller closes it, then waits until nobody is inside. Both orders are
  // sequentially consistent, so a worker that saw it open is waited for.
  std::atomic<uint32_t> epoch_{0};  // Changes with each job and at the end.
  std::atomic<bool> open_{false};
  std::atomic<bool> stopping_{false};
  std::atomic<uint32_t> num_inside_{0};
  std::atomic<int> next_item_{0};
  int num_items_ = 0;
  const void* body_ = nullptr;
  Call call_ = nullptr;
};

}  // namespace baton

#endif  // BATON_KERNELS_THREAD_POOL_H_
