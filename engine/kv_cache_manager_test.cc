#include "engine/kv_cache_manager.h"

#include <cstdint>
#include <deque>
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

// Ranges of a few prompts that begin alike, over a pool too small for all.
class PrefixedRanges {
 public:
  explicit PrefixedRanges(uint64_t seed) : random_(seed) {
    for (const Tokens& tokens : sequences_) pointers_.push_back(&tokens.range);
  }

  void Operate() {
    Tokens& sequence = sequences_[random_() % sequences_.size()];
    switch (random_() % 5) {
      case 0:
      case 1:
        Start(&sequence);
        break;
      case 2:
        Fill(&sequence);
        break;
      case 3:
        kv_.Release(&sequence.range);
        break;
      case 4:
        StepOn();
        break;
    }
    kv_.CheckInvariants(pointers_);
  }

  void End() {
    for (Tokens& sequence : sequences_) kv_.Release(&sequence.range);
    while (done_ < launched_) Done();
    ASSERT_EQ(kv_.num_free(), kv_.num_blocks());
    ASSERT_GT(found_, 100u);
    ASSERT_GT(kv_.prefix_cache().num_evicted(), 100u);
  }

 private:
  struct Tokens {
    std::vector<uint32_t> ids;
    PrefixChain chain;
    KvBlockRange range;
  };

  void Start(Tokens* sequence) {
    if (sequence->range.state() != KvRangeState::kFree) return;
    const uint32_t blocks = 1 + random_() % 6;
    sequence->ids.clear();
    for (uint32_t i = 0; i < blocks; ++i) {
      sequence->ids.resize(sequence->ids.size() + 64, random_() % 2);
    }
    sequence->chain = PrefixChain(random_() % 4 == 0 ? "salt" : "");
    kv_.FindPrefix(sequence->ids, blocks, &sequence->chain);
    const PrefixPosition& prefix = sequence->chain.position;
    const uint32_t taken = blocks - prefix.num_blocks + kv_.NumIdle(prefix);
    const bool has_room = taken <= kv_.num_free();
    if (!has_room) return;
    kv_.TakePrefix(prefix, &sequence->range);
    ASSERT_TRUE(kv_.Reserve(&sequence->range, blocks * 64));
    found_ += prefix.num_blocks;
    for (uint32_t i = 0; i < blocks; ++i) {
      uint64_t* content = ContentOf(*sequence, i);
      if (i < prefix.num_blocks) {
        ASSERT_EQ(*content, sequence->chain.key(i).low) << "block " << i;
      } else {
        *content = 0;
      }
    }
    kv_.Transition(&sequence->range, KvRangeState::kFilling);
  }

  void Fill(Tokens* sequence) {
    if (sequence->range.state() != KvRangeState::kFilling) return;
    sequence->chain.Extend(sequence->ids);
    for (uint32_t i = 0; i < sequence->range.blocks().size(); ++i) {
      uint64_t* content = ContentOf(*sequence, i);
      if (*content == 0) *content = sequence->chain.key(i).low;
      ASSERT_EQ(*content, sequence->chain.key(i).low);
    }
    kv_.CachePrefix(sequence->range, sequence->ids, &sequence->chain);
    kv_.Transition(&sequence->range, KvRangeState::kOwned);
  }

  // A step reads the blocks of all ranges.
  void StepOn() {
    if (done_ < launched_ && (random_() % 2 == 0 || launched_ - done_ == 3)) {
      return Done();
    }
    kv_.StepLaunched(StepId(++launched_));
    auto& reads = reads_.emplace_back();
    for (const Tokens& sequence : sequences_) {
      for (const BlockId block : sequence.range.blocks()) {
        reads.push_back({block, pool_.get()->generation(block)});
      }
    }
  }

  void Done() {
    for (const KvBlockRef& read : reads_.front()) {
      ASSERT_EQ(pool_.get()->generation(read.block), read.generation);
    }
    reads_.pop_front();
    kv_.StepDone(StepId(++done_));
  }

  uint64_t* ContentOf(const Tokens& sequence, uint32_t block) {
    return reinterpret_cast<uint64_t*>(
        pool_.get()->block(sequence.range.blocks()[block]));
  }

  std::mt19937_64 random_;
  HeapKvPool pool_{20, 64};
  KvCacheManager kv_{OneByteSpec(), pool_.get()};
  std::vector<Tokens> sequences_{8};
  std::vector<const KvBlockRange*> pointers_;
  std::deque<std::vector<KvBlockRef>> reads_;
  uint64_t launched_ = 0, done_ = 0;
  uint64_t found_ = 0;
};

TEST(KvCacheManagerTest, CachedBlocksKeepTheirContentForAllWhoMayReadIt) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  PrefixedRanges ranges(seed);
  for (int i = 0; i < 20000; ++i) {
    ranges.Operate();
    if (testing::Test::HasFatalFailure()) return;
  }
  ranges.End();
}

TEST(KvCacheManagerTest, ABlockTakenFromTheCacheInQuarantineWaitsForItsSteps) {
  HeapKvPool pool(2, 64);
  KvCacheManager kv(OneByteSpec(), pool.get());
  const std::vector<uint32_t> tokens(64, 5);
  PrefixChain chain;
  KvBlockRange first, second, third;
  Own(&kv, &first, 64);
  kv.CachePrefix(first, tokens, &chain);
  kv.StepLaunched(StepId(1));
  kv.Release(&first);
  EXPECT_EQ(kv.num_free(), 1u);
  EXPECT_EQ(kv.num_deferred(), 1u);
  kv.FindPrefix(tokens, 1, &chain);
  EXPECT_EQ(kv.NumIdle(chain.position), 0u);
  kv.TakePrefix(chain.position, &second);
  EXPECT_EQ(kv.num_deferred(), 0u);
  kv.StepLaunched(StepId(2));  // Reads it, too.
  kv.Release(&second);
  EXPECT_EQ(kv.num_deferred(), 1u) << "twice in quarantine";
  kv.StepDone(StepId(1));
  EXPECT_FALSE(kv.Reserve(&third, 128));
  kv.StepDone(StepId(2));
  EXPECT_EQ(kv.num_deferred(), 0u);
  EXPECT_TRUE(kv.Reserve(&third, 128));
  EXPECT_EQ(kv.prefix_cache().num_evicted(), 1u);
  kv.Release(&third);
}

TEST(KvCacheManagerTest, ACachedBlockKeepsItsGenerationUntilItIsEvicted) {
  HeapKvPool pool(1, 64);
  KvCacheManager kv(OneByteSpec(), pool.get());
  const std::vector<uint32_t> tokens(64, 5);
  PrefixChain chain;
  KvBlockRange range;
  Own(&kv, &range, 64);
  const BlockId block = range.blocks().front();
  const uint64_t generation = pool.get()->generation(block);
  kv.CachePrefix(range, tokens, &chain);
  kv.Release(&range);
  EXPECT_EQ(kv.num_free(), 1u);
  kv.FindPrefix(tokens, 1, &chain);
  kv.TakePrefix(chain.position, &range);
  EXPECT_EQ(range.blocks().front(), block);
  EXPECT_EQ(pool.get()->generation(block), generation);
  kv.Release(&range);
  ASSERT_TRUE(kv.Reserve(&range, 1));
  EXPECT_GT(pool.get()->generation(block), generation);
  EXPECT_EQ(kv.prefix_cache().num_blocks(), 0u);
  kv.Release(&range);
}

}  // namespace
}  // namespace baton
