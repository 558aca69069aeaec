#include "base/mpsc_queue.h"

#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace baton {
namespace {

TEST(MpscQueueTest, DrainTakesAllItemsInOrderAndLeavesNone) {
  MpscQueue<int> queue;
  queue.Push(1);
  queue.Push(2);
  std::vector<int> items = {9};
  queue.Drain(&items);
  EXPECT_EQ(items, (std::vector<int>{1, 2}));
  queue.Drain(&items);
  EXPECT_TRUE(items.empty());
}

TEST(MpscQueueTest, WakeEndsAWaitWithoutItems) {
  MpscQueue<int> queue;
  queue.Wake();
  EXPECT_FALSE(queue.WaitForItem(absl::InfiniteDuration()));
}

TEST(MpscQueueTest, ManyProducersLoseNothingAndKeepTheirOwnOrder) {
  constexpr int kProducers = 4;
  constexpr int kItems = 2000;
  MpscQueue<std::pair<int, int>> queue;
  std::vector<std::thread> producers;
  producers.reserve(kProducers);
  for (int p = 0; p < kProducers; ++p) {
    producers.emplace_back([p, &queue] {
      for (int i = 0; i < kItems; ++i) queue.Push({p, i});
    });
  }
  std::vector<int> next(kProducers, 0);
  std::vector<std::pair<int, int>> items;
  for (int taken = 0; taken < kProducers * kItems;) {
    ASSERT_TRUE(queue.WaitForItem(absl::Seconds(60)));
    queue.Drain(&items);
    for (const auto& [producer, index] : items) {
      EXPECT_EQ(index, next[producer]++);
    }
    taken += static_cast<int>(items.size());
  }
  for (std::thread& producer : producers) producer.join();
}

}  // namespace
}  // namespace baton
