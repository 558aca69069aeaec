#include "engine/prefix_cache.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "base/prefix_key.h"
#include "engine/cache_spec.h"
#include "gtest/gtest.h"

namespace baton {
namespace {

constexpr PrefixKey kKey = {.high = 1, .low = 2};
constexpr PrefixKey kOtherKey = {.high = 1, .low = 3};

std::vector<uint32_t> BlockOf(uint32_t token) {
  return std::vector<uint32_t>(CacheSpec::kBlockTokens, token);
}

TEST(PrefixCacheTest, FindsABlockBehindTheBlocksBeforeIt) {
  PrefixCache cache(4);
  const auto a = BlockOf(1), b = BlockOf(2);
  PrefixPosition position;
  ASSERT_TRUE(cache.Insert({kKey, a, ""}, BlockId(3), &position));
  ASSERT_TRUE(cache.Insert({kOtherKey, b, ""}, BlockId(1), &position));
  EXPECT_EQ(position.num_blocks, 2u);
  PrefixPosition found;
  EXPECT_FALSE(cache.Advance({kOtherKey, b, ""}, &found));
  ASSERT_TRUE(cache.Advance({kKey, a, ""}, &found));
  EXPECT_EQ(found.block, BlockId(3));
  ASSERT_TRUE(cache.Advance({kOtherKey, b, ""}, &found));
  EXPECT_EQ(found, position);
  EXPECT_EQ(cache.Before(found).block, BlockId(3));
  EXPECT_EQ(cache.Before(cache.Before(found)), PrefixPosition());
}

TEST(PrefixCacheTest, EqualKeysOfOtherTokensFindNothingAndReplaceNothing) {
  PrefixCache cache(4);
  auto a = BlockOf(1), b = a;
  b.back() = 2;
  PrefixPosition at_a, at_b;
  ASSERT_TRUE(cache.Insert({kKey, a, ""}, BlockId(0), &at_a));
  EXPECT_FALSE(cache.Advance({kKey, b, ""}, &at_b));
  EXPECT_FALSE(cache.Insert({kKey, b, ""}, BlockId(1), &at_b));
  EXPECT_EQ(at_b, PrefixPosition());
  EXPECT_FALSE(cache.Contains(BlockId(1)));
  ASSERT_TRUE(cache.Advance({kKey, a, ""}, &at_b));
  EXPECT_EQ(at_b, at_a);
}

TEST(PrefixCacheTest, EqualKeysAndTokensBehindOtherBlocksAreNotTheSame) {
  PrefixCache cache(4);
  const auto a = BlockOf(1), b = BlockOf(2), same = BlockOf(3);
  PrefixPosition at_a, at_b;
  ASSERT_TRUE(cache.Insert({{0, 1}, a, ""}, BlockId(0), &at_a));
  ASSERT_TRUE(cache.Insert({{0, 2}, b, ""}, BlockId(1), &at_b));
  ASSERT_TRUE(cache.Insert({kKey, same, ""}, BlockId(2), &at_a));
  EXPECT_FALSE(cache.Advance({kKey, same, ""}, &at_b));
  EXPECT_FALSE(cache.Insert({kKey, same, ""}, BlockId(3), &at_b));
  PrefixPosition root;
  EXPECT_FALSE(cache.Advance({kKey, same, ""}, &root));
}

TEST(PrefixCacheTest, EqualKeysDoNotCrossSalts) {
  PrefixCache cache(2);
  const auto a = BlockOf(1);
  PrefixPosition mine, theirs;
  ASSERT_TRUE(cache.Insert({kKey, a, "mine"}, BlockId(0), &mine));
  for (const char* salt : {"", "theirs", "min", "mine2"}) {
    EXPECT_FALSE(cache.Advance({kKey, a, salt}, &theirs)) << salt;
    EXPECT_FALSE(cache.Insert({kKey, a, salt}, BlockId(1), &theirs)) << salt;
  }
  EXPECT_TRUE(cache.Advance({kKey, a, "mine"}, &theirs));
}

TEST(PrefixCacheTest, EvictsTheOneThatIsIdleTheLongestAndLeavesFirst) {
  PrefixCache cache(4);
  const auto a = BlockOf(1), b = BlockOf(2), c = BlockOf(3);
  PrefixPosition chain, other;
  ASSERT_TRUE(cache.Insert({{0, 1}, a, ""}, BlockId(0), &chain));
  ASSERT_TRUE(cache.Insert({{0, 2}, b, ""}, BlockId(1), &chain));
  ASSERT_TRUE(cache.Insert({{0, 3}, c, ""}, BlockId(2), &other));
  cache.SetIdle(BlockId(0));
  cache.SetIdle(BlockId(2));
  cache.SetIdle(BlockId(1));
  std::vector<BlockId> freed;
  cache.Evict(&freed);  // 0 is the oldest, and 1 is behind it.
  EXPECT_EQ(freed, std::vector{BlockId(1)});
  EXPECT_FALSE(cache.Has(chain));
  cache.Evict(&freed);
  cache.Evict(&freed);
  EXPECT_EQ(freed, (std::vector{BlockId(1), BlockId(0), BlockId(2)}));
  EXPECT_EQ(cache.num_evicted(), 3u);
  EXPECT_EQ(cache.num_blocks(), 0u);
}

TEST(PrefixCacheTest, WhatIsBehindAnEvictedBlockIsNoLongerFound) {
  PrefixCache cache(4);
  const auto a = BlockOf(1), b = BlockOf(2);
  PrefixPosition chain;
  ASSERT_TRUE(cache.Insert({{0, 1}, a, ""}, BlockId(0), &chain));
  ASSERT_TRUE(cache.Insert({{0, 2}, b, ""}, BlockId(1), &chain));
  cache.SetIdle(BlockId(0));  // Somebody has computed these tokens himself.
  std::vector<BlockId> freed;
  cache.Evict(&freed);
  EXPECT_EQ(freed, std::vector{BlockId(0)});
  EXPECT_FALSE(cache.Has(chain));
  EXPECT_FALSE(cache.Contains(BlockId(1)));
  EXPECT_EQ(cache.num_idle(), 0u);
}

// What the cache must do, by looking through all there is.
class NaiveCache {
 public:
  struct Node {
    uint64_t id = 0;
    std::string salt;
    std::vector<uint32_t> tokens;  // From the first one.
    PrefixKey key;
    BlockId block;
    std::optional<uint64_t> idle_since = std::nullopt;
  };

  const Node* Find(const std::string& salt,
                   const std::vector<uint32_t>& tokens) const {
    for (const Node& node : nodes) {
      if (node.salt == salt && node.tokens == tokens) return &node;
    }
    return nullptr;
  }
  bool HasKey(const PrefixKey& key) const {
    return std::any_of(nodes.begin(), nodes.end(),
                       [&](const Node& node) { return node.key == key; });
  }
  Node* OfBlock(BlockId block) {
    for (Node& node : nodes) {
      if (node.block == block) return &node;
    }
    return nullptr;
  }

  std::vector<BlockId> Evict() {
    const Node* victim = nullptr;
    for (const Node& node : nodes) {
      if (!node.idle_since.has_value()) continue;
      if (victim == nullptr || node.idle_since < victim->idle_since) {
        victim = &node;
      }
    }
    for (const Node* child = victim; child != nullptr;
         child = NewestIdleChild(*child)) {
      victim = child;
    }
    const Node gone = *victim;
    std::vector<BlockId> freed;
    std::erase_if(nodes, [&](const Node& node) {
      if (!IsBehind(node, gone)) return false;
      if (node.idle_since.has_value()) freed.push_back(node.block);
      return true;
    });
    return freed;
  }

  std::vector<Node> nodes;

 private:
  // Or is the same.
  static bool IsBehind(const Node& node, const Node& before) {
    return node.salt == before.salt &&
           node.tokens.size() >= before.tokens.size() &&
           std::equal(before.tokens.begin(), before.tokens.end(),
                      node.tokens.begin());
  }
  const Node* NewestIdleChild(const Node& parent) const {
    const Node* newest = nullptr;
    for (const Node& node : nodes) {
      if (node.tokens.size() !=
              parent.tokens.size() + CacheSpec::kBlockTokens ||
          !IsBehind(node, parent) || !node.idle_since.has_value()) {
        continue;
      }
      if (newest == nullptr || node.id > newest->id) newest = &node;
    }
    return newest;
  }
};

// Both caches, told the same.
class PrefixCachePair {
 public:
  PrefixCachePair(uint64_t seed, uint64_t num_keys)
      : random_(seed), num_keys_(num_keys) {
    for (uint32_t i = 0; i < kBlocks; ++i) free_.push_back(BlockId(i));
  }

  void Operate() {
    switch (random_() % 4) {
      case 0:
      case 1:
        WalkAndInsert();
        break;
      case 2:
        ChangeHolder();
        break;
      case 3:
        Evict();
        break;
    }
    cache_.CheckInvariants();
    CheckPositions();
  }

 private:
  static constexpr uint32_t kBlocks = 24;

  // Few, so that different prefixes often have the same one.
  PrefixKey KeyOf(const std::string& salt,
                  const std::vector<uint32_t>& tokens) const {
    return {.high = 0,
            .low = NextPrefixKey(RootPrefixKey(salt), tokens).low % num_keys_};
  }

  void WalkAndInsert() {
    const std::string salt = random_() % 3 == 0 ? "x" : "";
    std::vector<uint32_t> tokens;
    PrefixPosition position;
    while (true) {
      const auto block = BlockOf(static_cast<uint32_t>(random_() % 3));
      tokens.insert(tokens.end(), block.begin(), block.end());
      const PrefixBlock next = {KeyOf(salt, tokens), block, salt};
      const NaiveCache::Node* node = naive_.Find(salt, tokens);
      const PrefixPosition before = position;
      ASSERT_EQ(cache_.Advance(next, &position), node != nullptr);
      if (node != nullptr) {
        ASSERT_EQ(position.block, node->block);
        ASSERT_EQ(cache_.Before(position), before);
        continue;
      }
      if (!free_.empty()) Insert(next, salt, tokens, &position);
      positions_.push_back({position, tokens, salt});
      return;
    }
  }

  void Insert(const PrefixBlock& next, const std::string& salt,
              const std::vector<uint32_t>& tokens, PrefixPosition* position) {
    const bool is_free = !naive_.HasKey(next.key);
    const PrefixPosition before = *position;
    ASSERT_EQ(cache_.Insert(next, free_.back(), position), is_free);
    if (!is_free) {
      ASSERT_EQ(*position, before);
      return;
    }
    naive_.nodes.push_back({.id = ++newest_id_,
                            .salt = salt,
                            .tokens = tokens,
                            .key = next.key,
                            .block = free_.back()});
    free_.pop_back();
  }

  void ChangeHolder() {
    const BlockId block(static_cast<uint32_t>(random_() % kBlocks));
    NaiveCache::Node* node = naive_.OfBlock(block);
    ASSERT_EQ(cache_.Contains(block), node != nullptr);
    if (node == nullptr) return;
    ASSERT_EQ(cache_.IsIdle(block), node->idle_since.has_value());
    if (node->idle_since.has_value()) {
      cache_.SetBusy(block);
      node->idle_since.reset();
    } else {
      cache_.SetIdle(block);
      node->idle_since = ++time_;
    }
  }

  void Evict() {
    if (cache_.num_idle() == 0 || free_.size() > kBlocks / 2) return;
    std::vector<BlockId> freed, expected = naive_.Evict();
    cache_.Evict(&freed);
    ASSERT_TRUE(std::is_permutation(freed.begin(), freed.end(),
                                    expected.begin(), expected.end()));
    // Busy ones that it forgot are given up at some time, too.
    free_.clear();
    for (uint32_t i = 0; i < kBlocks; ++i) {
      if (naive_.OfBlock(BlockId(i)) == nullptr) free_.push_back(BlockId(i));
    }
  }

  void CheckPositions() {
    ASSERT_EQ(cache_.num_blocks(), naive_.nodes.size());
    uint32_t idle = 0;
    for (const NaiveCache::Node& node : naive_.nodes) {
      idle += node.idle_since.has_value();
    }
    ASSERT_EQ(cache_.num_idle(), idle);
    for (const Saved& saved : positions_) {
      if (saved.position.num_blocks == 0) continue;
      const size_t count = size_t{saved.position.num_blocks} * 64;
      const NaiveCache::Node* node = naive_.Find(
          saved.salt, {saved.tokens.begin(), saved.tokens.begin() + count});
      // Entries are numbered as nodes are.
      const bool is_there = node != nullptr && node->id == saved.position.entry;
      ASSERT_EQ(cache_.Has(saved.position), is_there);
      if (is_there) {
        ASSERT_EQ(node->block, saved.position.block);
      }
    }
    if (positions_.size() > 40) positions_.clear();
  }

  struct Saved {
    PrefixPosition position;
    std::vector<uint32_t> tokens;
    std::string salt;
  };

  std::mt19937_64 random_;
  const uint64_t num_keys_;
  PrefixCache cache_{kBlocks};
  NaiveCache naive_;
  std::vector<BlockId> free_;
  std::vector<Saved> positions_;
  uint64_t newest_id_ = 0;
  uint64_t time_ = 0;
};

TEST(PrefixCacheTest, DoesWhatANaiveCacheDoes) {
  for (const uint64_t num_keys : {6, 40, 1 << 30}) {
    const uint64_t seed = std::random_device()();
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    PrefixCachePair pair(seed, num_keys);
    for (int i = 0; i < 5000; ++i) {
      pair.Operate();
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

}  // namespace
}  // namespace baton
