#include "comm/kv_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

namespace baton {
namespace {

struct Free {
  void operator()(std::byte* p) const { std::free(p); }
};
using Region = std::unique_ptr<std::byte, Free>;

Region MakeRegion(uint32_t num_blocks, size_t block_bytes) {
  const size_t bytes = KvPool::RegionBytes(num_blocks, block_bytes);
  Region region(static_cast<std::byte*>(
      std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096)));
  std::memset(region.get(), 0, bytes);
  return region;
}

TEST(KvPoolTest, BlocksFollowTheGenerationsOnAPageBoundary) {
  EXPECT_EQ(KvPool::BlocksOffset(1), 4096u);
  EXPECT_EQ(KvPool::BlocksOffset(512), 4096u);
  EXPECT_EQ(KvPool::BlocksOffset(513), 8192u);
  EXPECT_EQ(KvPool::RegionBytes(3, 128), 4096u + 3 * 128);
  const Region region = MakeRegion(3, 128);
  const KvPool pool(region.get(), 3, 128);
  EXPECT_EQ(pool.block(BlockId(2)), region.get() + 4096 + 256);
}

TEST(KvPoolTest, SizesBeyondFourGigabytesDoNotWrap) {
  EXPECT_EQ(KvPool::RegionBytes(1u << 20, 1 << 20),
            (size_t{1} << 40) + KvPool::BlocksOffset(1u << 20));
}

TEST(KvPoolTest, EachNewContentHasAGenerationOfItsOwn) {
  const Region region = MakeRegion(2, 64);
  KvPool pool(region.get(), 2, 64);
  const uint64_t first = pool.BeginNewContent(BlockId(1));
  const uint64_t second = pool.BeginNewContent(BlockId(1));
  EXPECT_NE(first, second);
  EXPECT_EQ(pool.generation(BlockId(1)), second);
  EXPECT_EQ(pool.generation(BlockId(0)), 0u);
}

TEST(KvPoolTest, ACopyIsRefusedWhenTheContentIsNotTheExpectedOne) {
  const Region region = MakeRegion(2, 64);
  KvPool pool(region.get(), 2, 64);
  const KvBlockRef ref{BlockId(1), pool.BeginNewContent(BlockId(1))};
  std::memset(pool.block(BlockId(1)), 7, 64);
  std::vector<std::byte> copy(64);
  EXPECT_TRUE(CopyBlockIfCurrent(region.get(), 2, 64, ref, copy.data()));
  EXPECT_EQ(0, std::memcmp(copy.data(), pool.block(BlockId(1)), 64));
  pool.BeginNewContent(BlockId(1));
  EXPECT_FALSE(CopyBlockIfCurrent(region.get(), 2, 64, ref, copy.data()));
}

// The writer fills the block with its generation; an accepted copy must hold
// that generation alone.
TEST(KvPoolTest, NoTornCopyIsAcceptedWhileAWriterReusesTheBlock) {
  constexpr size_t kBlockBytes = 4096;
  const Region region = MakeRegion(1, kBlockBytes);
  KvPool pool(region.get(), 1, kBlockBytes);
  std::atomic<bool> stop = false;
  std::thread writer([&] {
    while (!stop) {
      const uint64_t generation = pool.BeginNewContent(BlockId(0));
      for (size_t i = 0; i < kBlockBytes; i += sizeof generation) {
        reinterpret_cast<std::atomic<uint64_t>*>(pool.block(BlockId(0)) + i)
            ->store(generation, std::memory_order_relaxed);
      }
    }
  });
  std::vector<uint64_t> copy(kBlockBytes / sizeof(uint64_t));
  for (int i = 0; i < 20'000; ++i) {
    const KvBlockRef ref{BlockId(0), pool.generation(BlockId(0))};
    if (!CopyBlockIfCurrent(region.get(), 1, kBlockBytes, ref,
                            reinterpret_cast<std::byte*>(copy.data()))) {
      continue;
    }
    // The copy may be of before the writer's last words, never of after.
    for (uint64_t word : copy) ASSERT_LE(word, ref.generation);
  }
  stop = true;
  writer.join();
}

}  // namespace
}  // namespace baton
