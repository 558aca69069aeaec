#include "base/prefix_key.h"

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "gtest/gtest.h"

namespace baton {
namespace {

TEST(PrefixKeyTest, IsTheSameEverywhere) {
  const PrefixKey root = RootPrefixKey("tenant-7");
  const std::vector<uint32_t> tokens = {1, 2, 3};
  const PrefixKey key = NextPrefixKey(root, tokens);
  EXPECT_EQ(root.high, 9220547021720058184u);
  EXPECT_EQ(root.low, 13022350169991230380u);
  EXPECT_EQ(key.high, 6697348511494151051u);
  EXPECT_EQ(key.low, 332098765595615870u);
}

TEST(PrefixKeyTest, SaltsAndFormsDoNotMeet) {
  absl::flat_hash_set<PrefixKey> roots;
  std::string salt;
  for (int length = 0; length < 64; ++length) {
    for (uint32_t form = 0; form < 4; ++form) {
      EXPECT_TRUE(roots.insert(RootPrefixKey(salt, form)).second);
    }
    salt.push_back('\0');  // As long as it may be, and of zeros alone.
  }
}

TEST(PrefixKeyTest, TellsPrefixesApartThatDifferInOneTokenOrInLength) {
  std::mt19937_64 random(1);
  absl::flat_hash_set<PrefixKey> keys;
  size_t num_keys = 0;
  for (int chain = 0; chain < 1000; ++chain) {
    PrefixKey key = RootPrefixKey("");
    std::vector<uint32_t> block(64, static_cast<uint32_t>(chain));
    for (int i = 0; i < 8; ++i) {
      key = NextPrefixKey(key, block);
      keys.insert(key);
      ++num_keys;
      block[random() % block.size()] = static_cast<uint32_t>(random());
    }
  }
  EXPECT_EQ(keys.size(), num_keys);
  const PrefixKey root = RootPrefixKey("");
  EXPECT_NE(NextPrefixKey(root, std::vector<uint32_t>{0}),
            NextPrefixKey(root, std::vector<uint32_t>{0, 0}));
}

// Each bit of a token changes each bit of the key half of the time.
TEST(PrefixKeyTest, Mixes) {
  constexpr int kBlocks = 2000;
  std::mt19937_64 random(2);
  std::vector<int> flips(128);
  for (int i = 0; i < kBlocks; ++i) {
    std::vector<uint32_t> block(4);
    for (uint32_t& token : block) token = static_cast<uint32_t>(random() % 256);
    const PrefixKey before = NextPrefixKey(RootPrefixKey("s"), block);
    block[random() % 4] ^= 1u << random() % 17;
    const PrefixKey after = NextPrefixKey(RootPrefixKey("s"), block);
    for (int bit = 0; bit < 64; ++bit) {
      flips[bit] += (before.low ^ after.low) >> bit & 1;
      flips[64 + bit] += (before.high ^ after.high) >> bit & 1;
    }
  }
  for (const int count : flips) {
    EXPECT_GT(count, kBlocks * 0.44);
    EXPECT_LT(count, kBlocks * 0.56);
  }
}

}  // namespace
}  // namespace baton
