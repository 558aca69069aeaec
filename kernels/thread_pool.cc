#include "kernels/thread_pool.h"

#include <immintrin.h>
#include <pthread.h>
#include <sched.h>

#include "base/logging.h"

namespace baton {
namespace {

// About 10 us of PAUSE: longer than the gap between two kernels of a step,
// short beside a time slice.
constexpr int kSpins = 256;

// Waits until `value` is not `old`: spins, then sleeps in the kernel.
void AwaitChange(const std::atomic<uint32_t>& value, uint32_t old) {
  for (int i = 0; i < kSpins; ++i) {
    if (value.load(std::memory_order_acquire) != old) return;
    _mm_pause();
  }
  value.wait(old, std::memory_order_acquire);
}

void PinToCpu(std::thread& thread, int index) {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return;
  int skip = index % CPU_COUNT(&allowed);
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed) || skip-- > 0) continue;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    pthread_setaffinity_np(thread.native_handle(), sizeof(one), &one);
    return;
  }
}

}  // namespace

ThreadPool::ThreadPool(const ThreadPoolOptions& options) {
  CHECK_GE(options.num_threads, 1) << "num_threads";
  for (int i = 1; i < options.num_threads; ++i) {
    workers_.emplace_back([this] { WorkerLoop(); });
    if (options.pin_threads) PinToCpu(workers_.back(), i);
  }
}

ThreadPool::~ThreadPool() {
  stopping_.store(true);
  epoch_.fetch_add(1);
  epoch_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::Run(int num_items, const void* body, Call call) {
  if (workers_.empty() || num_items <= 1) {
    for (int i = 0; i < num_items; ++i) call(body, i);
    return;
  }
  num_items_ = num_items;
  body_ = body;
  call_ = call;
  next_item_.store(0, std::memory_order_relaxed);
  open_.store(true);
  epoch_.fetch_add(1);
  epoch_.notify_all();
  RunItems();
  open_.store(false);
  for (uint32_t inside = num_inside_.load(); inside != 0;
       inside = num_inside_.load()) {
    AwaitChange(num_inside_, inside);
  }
}

void ThreadPool::WorkerLoop() {
  uint32_t seen = 0;
  while (true) {
    AwaitChange(epoch_, seen);
    seen = epoch_.load();
    if (stopping_.load()) return;
    num_inside_.fetch_add(1);
    if (open_.load()) RunItems();
    if (num_inside_.fetch_sub(1) == 1) num_inside_.notify_one();
  }
}

void ThreadPool::RunItems() {
  while (true) {
    const int item = next_item_.fetch_add(1, std::memory_order_relaxed);
    if (item >= num_items_) return;
    call_(body_, item);
  }
}

}  // namespace baton
