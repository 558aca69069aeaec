#include "comm/kv_checksum.h"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <utility>
#include <vector>

namespace baton {
namespace {

constexpr size_t kBytes = 1024;

std::vector<std::byte> RandomBlock(uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> block(kBytes);
  for (std::byte& byte : block) byte = static_cast<std::byte>(random());
  return block;
}

uint64_t Sum(const std::vector<std::byte>& block,
             KvBlockIdentity identity = {.index = 3, .generation = 9}) {
  return KvBlockChecksum(block.data(), block.size(), identity);
}

TEST(KvChecksumTest, EveryFlippedBitShows) {
  for (const uint64_t seed : {0, 1, 2}) {
    std::vector<std::byte> block =
        seed == 0 ? std::vector<std::byte>(kBytes) : RandomBlock(seed);
    std::set<uint64_t> sums = {Sum(block)};
    for (size_t bit = 0; bit < 8 * kBytes; ++bit) {
      block[bit / 8] ^= std::byte{1} << (bit % 8);
      EXPECT_TRUE(sums.insert(Sum(block)).second) << "bit " << bit;
      block[bit / 8] ^= std::byte{1} << (bit % 8);
    }
  }
}

TEST(KvChecksumTest, EveryPairOfFlippedTopBitsShows) {
  // A multiplication alone leaves a flipped top bit at that: two would cancel.
  std::vector<std::byte> block(kBytes);
  std::set<uint64_t> sums = {Sum(block)};
  for (size_t a = 7; a < kBytes; a += 8) {
    for (size_t b = a + 8; b < kBytes; b += 8) {
      block[a] ^= std::byte{0x80};
      block[b] ^= std::byte{0x80};
      EXPECT_TRUE(sums.insert(Sum(block)).second) << a << ' ' << b;
      block[a] ^= std::byte{0x80};
      block[b] ^= std::byte{0x80};
    }
  }
}

TEST(KvChecksumTest, ABlockCutShortShows) {
  std::vector<std::byte> block = RandomBlock(4);
  std::set<uint64_t> sums = {Sum(block)};
  for (size_t kept = kBytes - 1; kept > 0; --kept) {
    if (block[kept] == std::byte{0}) continue;  // It is as it was.
    block[kept] = std::byte{0};
    EXPECT_TRUE(sums.insert(Sum(block)).second) << "cut to " << kept;
  }
  block.resize(kBytes / 2);
  EXPECT_TRUE(sums.insert(Sum(block)).second);
}

TEST(KvChecksumTest, ExchangedWordsShow) {
  const std::vector<std::byte> block = RandomBlock(5);
  std::set<uint64_t> sums = {Sum(block)};
  for (size_t a = 0; a < kBytes; a += 8) {
    for (size_t b = a + 8; b < kBytes; b += 8) {
      std::vector<std::byte> changed = block;
      for (size_t i = 0; i < 8; ++i) std::swap(changed[a + i], changed[b + i]);
      EXPECT_TRUE(sums.insert(Sum(changed)).second) << a << ' ' << b;
    }
  }
}

TEST(KvChecksumTest, AnotherPlaceAndAnotherGenerationShow) {
  const std::vector<std::byte> block = RandomBlock(6);
  std::set<uint64_t> sums;
  for (uint32_t index = 0; index < 100; ++index) {
    for (uint64_t generation = 0; generation < 100; ++generation) {
      EXPECT_TRUE(
          sums.insert(Sum(block, {.index = index, .generation = generation}))
              .second)
          << index << ' ' << generation;
    }
  }
}

TEST(KvChecksumTest, ItIsTheSameEverywhere) {
  // Both ends of a transfer must agree, whatever compiled them.
  std::vector<std::byte> block(kBytes);
  for (size_t i = 0; i < kBytes; ++i) block[i] = static_cast<std::byte>(i * 7);
  EXPECT_EQ(Sum(block, {.index = 1, .generation = 2}), 0x3b6891367010cac3);
}

}  // namespace
}  // namespace baton
