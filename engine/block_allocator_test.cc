#include "engine/block_allocator.h"

#include <algorithm>
#include <map>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "tests/fakes/heap_kv_pool.h"

namespace baton {
namespace {

TEST(BlockAllocatorTest, CachedBlocksAreFreeAndTheLastToBeGivenAnew) {
  HeapKvPool pool(3, 64);
  PrefixCache cache(3);
  BlockAllocator allocator(pool.get(), &cache);
  std::vector<BlockId> cached, others;
  ASSERT_TRUE(allocator.Allocate(1, &cached));
  const std::vector<uint32_t> tokens(64, 1);
  PrefixPosition position;
  ASSERT_TRUE(cache.Insert({{1, 2}, tokens, ""}, cached[0], &position));
  const uint64_t generation = pool->generation(cached[0]);
  allocator.Free(cached);
  EXPECT_EQ(allocator.num_free(), 3u);
  ASSERT_TRUE(allocator.Allocate(2, &others));
  EXPECT_TRUE(cache.Contains(cached[0]));
  allocator.Share(cached);
  EXPECT_EQ(allocator.num_free(), 0u);
  EXPECT_FALSE(allocator.Allocate(1, &others));
  EXPECT_EQ(pool->generation(cached[0]), generation);
  allocator.Free(cached);
  ASSERT_TRUE(allocator.Allocate(1, &others));
  EXPECT_EQ(others.back(), cached[0]);
  EXPECT_FALSE(cache.Contains(cached[0]));
  EXPECT_GT(pool->generation(cached[0]), generation);
  allocator.CheckInvariants();
  allocator.Free(others);
}

TEST(BlockAllocatorTest, AllocatesAllOrNothing) {
  HeapKvPool pool(4, 64);
  PrefixCache cache(4);
  BlockAllocator allocator(pool.get(), &cache);
  std::vector<BlockId> blocks;
  EXPECT_TRUE(allocator.Allocate(3, &blocks));
  EXPECT_FALSE(allocator.Allocate(2, &blocks));
  EXPECT_EQ(blocks.size(), 3u);
  EXPECT_EQ(allocator.num_free(), 1u);
  allocator.Free(blocks);
}

TEST(BlockAllocatorTest, EachAllocationIsANewGeneration) {
  HeapKvPool pool(1, 64);
  PrefixCache cache(1);
  BlockAllocator allocator(pool.get(), &cache);
  std::vector<BlockId> first, second;
  ASSERT_TRUE(allocator.Allocate(1, &first));
  const uint64_t generation = pool->generation(first[0]);
  allocator.Free(first);
  EXPECT_EQ(pool->generation(first[0]), generation);
  ASSERT_TRUE(allocator.Allocate(1, &second));
  EXPECT_GT(pool->generation(second[0]), generation);
  allocator.Free(second);
}

TEST(BlockAllocatorTest, ABlockFreedTwiceDies) {
  HeapKvPool pool(2, 64);
  PrefixCache cache(2);
  BlockAllocator allocator(pool.get(), &cache);
  std::vector<BlockId> blocks;
  ASSERT_TRUE(allocator.Allocate(1, &blocks));
  allocator.Free(blocks);
  EXPECT_DEATH(allocator.Free(blocks), "freed twice");
}

TEST(BlockAllocatorTest, ASharedBlockIsFreeWithItsLastReference) {
  HeapKvPool pool(2, 64);
  PrefixCache cache(2);
  BlockAllocator allocator(pool.get(), &cache);
  std::vector<BlockId> blocks;
  ASSERT_TRUE(allocator.Allocate(1, &blocks));
  allocator.Share(blocks);
  EXPECT_EQ(allocator.references(blocks[0]), 2u);
  allocator.Free(blocks);
  EXPECT_EQ(allocator.num_free(), 1u);
  allocator.Free(blocks);
  EXPECT_EQ(allocator.num_free(), 2u);
  EXPECT_DEATH(allocator.Free(blocks), "freed twice");
  EXPECT_DEATH(allocator.Share(blocks), "is free");
}

TEST(BlockAllocatorTest, DiesWhenDestroyedWithBlocksOut) {
  EXPECT_DEATH(
      {
        HeapKvPool pool(2, 64);
        PrefixCache cache(2);
        BlockAllocator allocator(pool.get(), &cache);
        std::vector<BlockId> blocks;
        allocator.Allocate(1, &blocks);
      },
      "blocks out");
}

TEST(BlockAllocatorTest, AgreesWithANaiveModelOverRandomCalls) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  constexpr uint32_t kBlocks = 37;
  HeapKvPool pool(kBlocks, 64);
  PrefixCache cache(kBlocks);
  BlockAllocator allocator(pool.get(), &cache);
  std::map<BlockId, uint64_t> out;  // Block to generation.
  for (int i = 0; i < 20000; ++i) {
    if (random() % 2 == 0) {
      const uint32_t count = random() % 12;
      std::vector<BlockId> blocks;
      const bool fits = count <= kBlocks - out.size();
      ASSERT_EQ(allocator.Allocate(count, &blocks), fits);
      ASSERT_EQ(blocks.size(), fits ? count : 0);
      for (BlockId block : blocks) {
        ASSERT_TRUE(out.emplace(block, pool->generation(block)).second);
      }
    } else if (!out.empty()) {
      auto victim = out.begin();
      std::advance(victim, random() % out.size());
      ASSERT_EQ(pool->generation(victim->first), victim->second);
      allocator.Free({&victim->first, 1});
      out.erase(victim);
    }
    ASSERT_EQ(allocator.num_free(), kBlocks - out.size());
    allocator.CheckInvariants();
  }
  for (const auto& [block, generation] : out) allocator.Free({&block, 1});
}

}  // namespace
}  // namespace baton
