#include "comm/futex.h"

#include <gtest/gtest.h>

#include <thread>

namespace baton {
namespace {

TEST(FutexTest, ReturnsAtOnceWhereTheWordIsAnother) {
  std::atomic<uint32_t> word = 3;
  EXPECT_TRUE(FutexWait(&word, 2, MonotonicIn(absl::InfiniteDuration())));
}

TEST(FutexTest, ADeadlinePasses) {
  std::atomic<uint32_t> word = 3;
  const auto wait = [&](absl::Duration timeout) {
    const timespec deadline = MonotonicIn(timeout);
    while (FutexWait(&word, 3, deadline)) {
    }
  };
  wait(absl::Milliseconds(1));
  wait(-absl::Seconds(1));
}

TEST(FutexTest, AWakeEndsTheWaitOfAll) {
  std::atomic<uint32_t> word = 0;
  std::thread threads[3];
  for (std::thread& thread : threads) {
    thread = std::thread([&] {
      while (word.load() == 0) {
        FutexWait(&word, 0, MonotonicIn(absl::Minutes(10)));
      }
    });
  }
  word.store(1);
  FutexWakeAll(&word);
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace baton
