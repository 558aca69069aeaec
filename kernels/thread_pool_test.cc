#include "kernels/thread_pool.h"

#include <sched.h>

#include <numeric>

#include "gtest/gtest.h"

namespace baton {
namespace {

TEST(ThreadPoolTest, RunsEachItemOnce) {
  for (int num_threads : {1, 2, 3, 8}) {
    ThreadPool pool({.num_threads = num_threads});
    EXPECT_EQ(pool.num_threads(), num_threads);
    for (int num_items : {0, 1, 2, 5, 1000}) {
      std::vector<std::atomic<int>> runs(static_cast<size_t>(num_items));
      pool.ParallelFor(num_items,
                       [&](int i) { ++runs[static_cast<size_t>(i)]; });
      for (const std::atomic<int>& count : runs) EXPECT_EQ(count, 1);
    }
  }
}

TEST(ThreadPoolTest, OneThreadMeansTheCallerAlone) {
  ThreadPool pool({.num_threads = 1});
  pool.ParallelFor(10, [caller = std::this_thread::get_id()](int) {
    EXPECT_EQ(std::this_thread::get_id(), caller);
  });
}

TEST(ThreadPoolTest, SeesWhatOtherThreadsWroteWhenItReturns) {
  ThreadPool pool({.num_threads = 4});
  std::vector<int> values(64);  // Not atomic: the join must order it.
  for (int round = 0; round < 3000; ++round) {
    pool.ParallelFor(64, [&](int i) { values[static_cast<size_t>(i)] += i; });
  }
  for (int i = 0; i < 64; ++i) {
    EXPECT_EQ(values[static_cast<size_t>(i)], 3000 * i);
  }
}

TEST(ThreadPoolTest, BothThreadsTakePart) {
  ThreadPool pool({.num_threads = 2});
  // Each item waits for the other, so one thread alone could not finish.
  std::atomic<int> arrived{0};
  pool.ParallelFor(2, [&](int) {
    ++arrived;
    while (arrived < 2) std::this_thread::yield();
  });
  EXPECT_EQ(arrived, 2);
}

TEST(ThreadPoolTest, PinsEachWorkerToOneAllowedCpu) {
  ThreadPool pool({.num_threads = 3, .pin_threads = true});
  cpu_set_t allowed;
  ASSERT_EQ(sched_getaffinity(0, sizeof(allowed), &allowed), 0);
  const std::thread::id caller = std::this_thread::get_id();
  std::atomic<int> arrived{0};
  pool.ParallelFor(3, [&](int) {
    ++arrived;
    while (arrived < 3) std::this_thread::yield();
    if (std::this_thread::get_id() == caller) return;
    cpu_set_t mine;
    ASSERT_EQ(sched_getaffinity(0, sizeof(mine), &mine), 0);
    EXPECT_EQ(CPU_COUNT(&mine), 1);
    cpu_set_t both;
    CPU_AND(&both, &mine, &allowed);
    EXPECT_EQ(CPU_COUNT(&both), 1);
  });
}

}  // namespace
}  // namespace baton
