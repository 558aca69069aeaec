#include "engine/kv_cache_manager.h"

#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "tests/fakes/heap_kv_pool.h"

namespace baton {
namespace {

CacheSpec OneByteSpec() { return {.groups = {{"rows", 1}}}; }

TEST(KvCacheManagerTest, TakesJustTheBlocksThatTheTokensNeed) {
  HeapKvPool pool(4, 64);
  KvCacheManager kv(OneByteSpec(), pool.get());
  KvBlockRange range;
  ASSERT_TRUE(kv.Reserve(&range, 65));
  EXPECT_EQ(range.blocks().size(), 2u);
  EXPECT_EQ(kv.num_in(KvRangeState::kReserved), 2u);
  kv.Transition(&range, KvRangeState::kFilling);
  kv.Transition(&range, KvRangeState::kOwned);
  ASSERT_TRUE(kv.Reserve(&range, 128));
  EXPECT_EQ(range.blocks().size(), 2u);
  ASSERT_TRUE(kv.Reserve(&range, 129));
  EXPECT_EQ(range.blocks().size(), 3u);
  EXPECT_FALSE(kv.Reserve(&range, 5 * 64));
  EXPECT_EQ(range.blocks().size(), 3u);
  kv.Release(&range);
  EXPECT_EQ(kv.num_free(), 4u);
}

TEST(KvCacheManagerTest, GivenUpBlocksWaitForTheNewestStepLaunched) {
  HeapKvPool pool(2, 64);
  KvCacheManager kv(OneByteSpec(), pool.get());
  KvBlockRange range;
  ASSERT_TRUE(kv.Reserve(&range, 100));
  kv.Transition(&range, KvRangeState::kFilling);
  kv.StepLaunched(StepId(1));
  kv.StepLaunched(StepId(2));
  kv.Release(&range);
  EXPECT_EQ(range.state(), KvRangeState::kFree);
  EXPECT_EQ(kv.num_in(KvRangeState::kQuarantined), 2u);
  KvBlockRange other;
  EXPECT_FALSE(kv.Reserve(&other, 1));
  kv.StepDone(StepId(1));
  EXPECT_EQ(kv.num_free(), 0u);
  kv.StepDone(StepId(2));
  EXPECT_EQ(kv.num_free(), 2u);
}

TEST(KvCacheManagerTest, AnIllegalTransitionDies) {
  HeapKvPool pool(1, 64);
  KvCacheManager kv(OneByteSpec(), pool.get());
  KvBlockRange range;
  ASSERT_TRUE(kv.Reserve(&range, 1));
  EXPECT_DEATH(kv.Transition(&range, KvRangeState::kOwned), "CHECK");
  kv.Release(&range);
}

TEST(KvCacheManagerTest, NoBlockIsLostOrSharedOverRandomLives) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  HeapKvPool pool(24, 64);
  KvCacheManager kv(OneByteSpec(), pool.get());
  std::vector<KvBlockRange> ranges(8);
  std::vector<const KvBlockRange*> pointers;
  pointers.reserve(ranges.size());
  for (const KvBlockRange& range : ranges) pointers.push_back(&range);
  uint64_t launched = 0, done = 0;
  for (int i = 0; i < 20000; ++i) {
    KvBlockRange& range = ranges[random() % ranges.size()];
    const bool may_grow = range.state() == KvRangeState::kFree ||
                          range.state() == KvRangeState::kOwned;
    const auto to = static_cast<KvRangeState>(random() % kNumKvRangeStates);
    switch (random() % 5) {
      case 0:
        if (may_grow) kv.Reserve(&range, 1 + random() % 400);
        break;
      case 1:
        kv.Release(&range);
        break;
      case 2:
        kv.StepLaunched(StepId(++launched));
        break;
      case 3:
        if (done < launched) kv.StepDone(StepId(++done));
        break;
      case 4:
        if (to != KvRangeState::kFree && to != KvRangeState::kQuarantined &&
            range.state() != KvRangeState::kFree &&
            IsLegalTransition(range.state(), to)) {
          kv.Transition(&range, to);
        }
        break;
    }
    kv.CheckInvariants(pointers);
  }
  for (KvBlockRange& range : ranges) kv.Release(&range);
  kv.StepDone(StepId(launched));
  EXPECT_EQ(kv.num_free(), kv.num_blocks());
}

}  // namespace
}  // namespace baton
