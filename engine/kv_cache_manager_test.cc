#include "engine/kv_cache_manager.h"

#include <random>
#include <vector>

#include "base/logging.h"
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

void Own(KvCacheManager* kv, KvBlockRange* range, uint32_t tokens) {
  CHECK(kv->Reserve(range, tokens));
  if (range->state() == KvRangeState::kOwned) return;
  kv->Transition(range, KvRangeState::kFilling);
  kv->Transition(range, KvRangeState::kOwned);
}

TEST(KvCacheManagerTest, ARangeGrowsBehindWhatItShares) {
  HeapKvPool pool(5, 64);
  KvCacheManager kv(OneByteSpec(), pool.get());
  KvBlockRange first, second;
  Own(&kv, &first, 3 * 64);
  kv.Share(first, 2, &second);
  EXPECT_EQ(second.state(), KvRangeState::kReserved);
  EXPECT_EQ(kv.num_free(), 2u);
  Own(&kv, &second, 4 * 64);
  EXPECT_EQ(kv.num_free(), 0u);
  EXPECT_EQ(second.blocks()[0], first.blocks()[0]);
  EXPECT_EQ(second.blocks()[1], first.blocks()[1]);
  EXPECT_NE(second.blocks()[2], first.blocks()[2]);
  kv.Release(&first);
  EXPECT_EQ(kv.num_free(), 1u);
  kv.Release(&second);
  EXPECT_EQ(kv.num_free(), 5u);
}

TEST(KvCacheManagerTest, ASharedBlockWaitsForTheStepsOfItsLastHolder) {
  HeapKvPool pool(3, 64);
  KvCacheManager kv(OneByteSpec(), pool.get());
  KvBlockRange first, second;
  Own(&kv, &first, 2 * 64);
  kv.Share(first, 1, &second);
  Own(&kv, &second, 2 * 64);
  kv.StepLaunched(StepId(1));
  kv.Release(&first);  // Its own one waits, the other one is the second's.
  EXPECT_EQ(kv.num_in(KvRangeState::kQuarantined), 1u);
  kv.StepLaunched(StepId(2));
  kv.Release(&second);
  EXPECT_EQ(kv.num_in(KvRangeState::kQuarantined), 3u);
  kv.StepDone(StepId(1));
  EXPECT_EQ(kv.num_free(), 1u);
  kv.StepDone(StepId(2));
  EXPECT_EQ(kv.num_free(), 3u);
}

TEST(KvCacheManagerTest, AnIllegalTransitionDies) {
  HeapKvPool pool(1, 64);
  KvCacheManager kv(OneByteSpec(), pool.get());
  KvBlockRange range;
  ASSERT_TRUE(kv.Reserve(&range, 1));
  EXPECT_DEATH(kv.Transition(&range, KvRangeState::kOwned), "CHECK");
  kv.Release(&range);
}

TEST(KvCacheManagerTest, NoReferenceIsLostOverRandomLives) {
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
    const KvBlockRange& from = ranges[random() % ranges.size()];
    switch (random() % 6) {
      case 5:
        if (range.state() == KvRangeState::kFree &&
            (from.state() == KvRangeState::kReserved ||
             from.state() == KvRangeState::kFilling ||
             from.state() == KvRangeState::kOwned)) {
          kv.Share(from, random() % (from.blocks().size() + 1), &range);
        }
        break;
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
            to != KvRangeState::kExported && to != KvRangeState::kImporting &&
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
