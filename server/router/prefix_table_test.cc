#include "server/router/prefix_table.h"

#include <algorithm>
#include <deque>
#include <random>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace baton {
namespace {

std::vector<uint32_t> Ids(size_t count, uint32_t first = 0) {
  std::vector<uint32_t> ids(count);
  for (size_t i = 0; i < count; ++i) ids[i] = first + static_cast<uint32_t>(i);
  return ids;
}

std::vector<PrefixKey> Keys(size_t num_blocks, uint32_t first = 0) {
  return PrefixKeysOf(Ids(num_blocks * kTokensPerPrefixBlock, first), "");
}

RankName Rank(uint32_t worker, uint64_t incarnation = 1) {
  return {.worker = worker, .rank = 0, .incarnation = incarnation};
}

TEST(PrefixKeysOfTest, NamesWholeBlocksAlone) {
  EXPECT_TRUE(PrefixKeysOf({}, "").empty());
  EXPECT_TRUE(PrefixKeysOf(Ids(63), "").empty());
  EXPECT_EQ(PrefixKeysOf(Ids(64), "").size(), 1u);
  EXPECT_EQ(PrefixKeysOf(Ids(64 + 63), "").size(), 1u);
  EXPECT_EQ(PrefixKeysOf(Ids(128), "").size(), 2u);
}

TEST(PrefixKeysOfTest, AreThoseOfTheWorkersCaches) {
  const std::vector<uint32_t> ids = Ids(128);
  const PrefixKey first =
      NextPrefixKey(RootPrefixKey("salt"), std::span(ids).first(64));
  EXPECT_EQ(PrefixKeysOf(ids, "salt"),
            (std::vector<PrefixKey>{
                first, NextPrefixKey(first, std::span(ids).subspan(64))}));
}

TEST(PrefixKeysOfTest, DifferFromTheFirstOtherTokenOrSaltOn) {
  std::vector<uint32_t> ids = Ids(192);
  const std::vector<PrefixKey> keys = PrefixKeysOf(ids, "");
  ids[100] += 1;
  const std::vector<PrefixKey> others = PrefixKeysOf(ids, "");
  EXPECT_EQ(keys[0], others[0]);
  EXPECT_NE(keys[1], others[1]);
  EXPECT_NE(keys[2], others[2]);
  EXPECT_NE(PrefixKeysOf(Ids(192), "tenant")[0], keys[0]);
}

TEST(PrefixKeysOfTest, LooksAtSoManyBlocksAndNoMore) {
  const size_t most = kMaxPrefixBlocks * kTokensPerPrefixBlock;
  EXPECT_EQ(PrefixKeysOf(Ids(most), "").size(), kMaxPrefixBlocks);
  EXPECT_EQ(PrefixKeysOf(Ids(most + 640), ""), PrefixKeysOf(Ids(most), ""));
}

TEST(PrefixTableTest, CountsWhatEachRankHasComputed) {
  PrefixTable table(100);
  table.Put(Keys(2), Rank(7));
  EXPECT_EQ(table.CountKnown(Keys(4), Rank(7)), 2u);
  EXPECT_EQ(table.CountKnown(Keys(1), Rank(7)), 1u);
  EXPECT_EQ(table.CountKnown(Keys(4), Rank(5)), 0u);
  table.Put(Keys(3), Rank(5));
  EXPECT_EQ(table.CountKnown(Keys(4), Rank(5)), 3u);
  EXPECT_EQ(table.CountKnown(Keys(4), Rank(7)), 2u) << "it has not lost it";
  EXPECT_EQ(table.CountKnown(Keys(4, /*first=*/1), Rank(7)), 0u);
  EXPECT_EQ(table.CountKnown({}, Rank(7)), 0u);
}

TEST(PrefixTableTest, ForgetsAWorkerThatHasRestarted) {
  PrefixTable table(100);
  table.Put(Keys(2), Rank(1, /*incarnation=*/1));
  EXPECT_EQ(table.CountKnown(Keys(2), Rank(1, /*incarnation=*/2)), 0u);
}

TEST(PrefixTableTest, ForgetsAllRanksOfAWorkerAndNobodyElse) {
  PrefixTable table(100);
  table.Put(Keys(2), Rank(1));
  table.Put(Keys(1), {.worker = 1, .rank = 1, .incarnation = 2});
  table.Put(Keys(3), Rank(2));
  table.Forget(1);
  EXPECT_EQ(table.size(), 3u);
  EXPECT_EQ(table.CountKnown(Keys(2), Rank(1)), 0u);
  EXPECT_EQ(table.CountKnown(Keys(3), Rank(2)), 3u);
}

TEST(PrefixTableTest, TellsTheRanksOfAWorkerApart) {
  PrefixTable table(100);
  const RankName one = {.worker = 1, .rank = 0, .incarnation = 1};
  const RankName other = {.worker = 1, .rank = 1, .incarnation = 1};
  table.Put(Keys(1), other);
  EXPECT_EQ(table.CountKnown(Keys(1), one), 0u);
  EXPECT_EQ(table.CountKnown(Keys(1), other), 1u);
}

TEST(PrefixTableTest, LetsTheLongestOfTheOldestGoFirst) {
  PrefixTable table(4);
  table.Put(Keys(2), Rank(1));
  table.Put(Keys(2, /*first=*/1000), Rank(1));
  table.Put(Keys(1, /*first=*/2000), Rank(1));
  EXPECT_EQ(table.size(), 4u);
  EXPECT_EQ(table.CountKnown(Keys(2), Rank(1)), 1u);
  EXPECT_EQ(table.CountKnown(Keys(2, 1000), Rank(1)), 2u);
  table.Put(Keys(1), Rank(1));  // Which makes it new again.
  table.Put(Keys(1, /*first=*/3000), Rank(1));
  EXPECT_EQ(table.CountKnown(Keys(2), Rank(1)), 1u);
  EXPECT_EQ(table.CountKnown(Keys(2, 1000), Rank(1)), 1u);
}

TEST(PrefixTableTest, KeepsTheShortestOfAPromptThatIsLongerThanIt) {
  PrefixTable table(3);
  table.Put(Keys(8), Rank(1));
  EXPECT_EQ(table.size(), 3u);
  EXPECT_EQ(table.CountKnown(Keys(8), Rank(1)), 3u);
}

// The same by a list that is searched from its front.
class NaiveTable {
 public:
  explicit NaiveTable(size_t capacity) : capacity_(capacity) {}

  void Put(const std::vector<PrefixKey>& keys, const RankName& rank) {
    for (auto key = keys.rbegin(); key != keys.rend(); ++key) {
      std::erase(entries_, std::pair(*key, rank));
      entries_.emplace_front(*key, rank);
    }
    if (entries_.size() > capacity_) entries_.resize(capacity_);
  }
  void Forget(uint32_t worker) {
    std::erase_if(entries_, [&](const auto& entry) {
      return entry.second.worker == worker;
    });
  }
  size_t CountKnown(const std::vector<PrefixKey>& keys,
                    const RankName& rank) const {
    size_t count = 0;
    for (const PrefixKey& key : keys) {
      const auto entry = std::pair(key, rank);
      if (std::find(entries_.begin(), entries_.end(), entry) !=
          entries_.end()) {
        ++count;
      }
    }
    return count;
  }

 private:
  const size_t capacity_;
  std::deque<std::pair<PrefixKey, RankName>> entries_;
};

TEST(PrefixTableTest, DoesAsANaiveListDoes) {
  constexpr uint64_t kSeed = 20261130;
  SCOPED_TRACE(kSeed);
  std::mt19937_64 random(kSeed);
  PrefixTable table(20);
  NaiveTable naive(20);
  for (int i = 0; i < 5000; ++i) {
    const std::vector<PrefixKey> keys =
        Keys(random() % 6, static_cast<uint32_t>(random() % 8));
    const RankName rank = Rank(random() % 3, random() % 2);
    ASSERT_EQ(table.CountKnown(keys, rank), naive.CountKnown(keys, rank)) << i;
    table.Put(keys, rank);
    naive.Put(keys, rank);
    if (random() % 32 == 0) {
      table.Forget(rank.worker);
      naive.Forget(rank.worker);
    }
    ASSERT_LE(table.size(), 20u);
  }
}

}  // namespace
}  // namespace baton
