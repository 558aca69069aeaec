#include "server/text/bpe.h"

#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace baton {
namespace {

std::array<uint32_t, 256> OwnIds() {
  std::array<uint32_t, 256> ids;
  for (uint32_t byte = 0; byte < 256; ++byte) ids[byte] = byte;
  return ids;
}

// The definition, word for word.
class NaiveBpe {
 public:
  void AddMerge(uint32_t left, uint32_t right, uint32_t merged) {
    merges_[{left, right}] = {next_rank_++, merged};
  }

  std::vector<uint32_t> Encode(std::string_view piece) const {
    std::vector<uint32_t> ids;
    for (const char c : piece) ids.push_back(static_cast<uint8_t>(c));
    while (true) {
      std::pair<int, uint32_t> best = {INT32_MAX, 0};
      size_t at = 0;
      for (size_t i = 0; i + 1 < ids.size(); ++i) {
        const auto found = merges_.find({ids[i], ids[i + 1]});
        if (found != merges_.end() && found->second.first < best.first) {
          best = found->second;
          at = i;
        }
      }
      if (best.first == INT32_MAX) return ids;
      ids[at] = best.second;
      ids.erase(ids.begin() + at + 1);
    }
  }

 private:
  std::map<std::pair<uint32_t, uint32_t>, std::pair<int, uint32_t>> merges_;
  int next_rank_ = 0;
};

// Random rules over few letters, in an order that need not make sense: a rule
// may come before the rules that make its tokens, and many rules make one
// token.
void AddRandomMerges(int num_letters, int num_merges, std::mt19937* random,
                     Bpe* bpe, NaiveBpe* naive) {
  std::vector<std::string> tokens;
  std::map<std::string, uint32_t> ids;
  for (int i = 0; i < num_letters; ++i) {
    tokens.emplace_back(1, static_cast<char>('a' + i));
    ids[tokens.back()] = 'a' + i;
  }
  std::vector<std::array<uint32_t, 3>> merges;
  for (int i = 0; i < num_merges; ++i) {
    const std::string left = tokens[(*random)() % tokens.size()];
    const std::string right = tokens[(*random)() % tokens.size()];
    const std::string merged = left + right;
    if (merged.size() > 12) continue;
    const auto [id, is_new] = ids.try_emplace(merged, 256 + ids.size());
    if (is_new) tokens.push_back(merged);
    merges.push_back({ids[left], ids[right], id->second});
  }
  std::shuffle(merges.begin(), merges.end(), *random);
  for (const auto& [left, right, merged] : merges) {
    bpe->AddMerge(left, right, merged);
    naive->AddMerge(left, right, merged);
  }
}

TEST(BpeTest, RandomRulesGiveWhatTheDefinitionGives) {
  for (uint32_t seed = 0; seed < 100; ++seed) {
    std::mt19937 random(seed);
    const int num_letters = 1 + random() % 4;
    Bpe bpe(OwnIds());
    NaiveBpe naive;
    AddRandomMerges(num_letters, 60, &random, &bpe, &naive);
    for (const size_t size : {1, 2, 3, 5, 31, 32, 33, 34, 64, 200}) {
      std::string piece;
      for (size_t i = 0; i < size; ++i) {
        piece.push_back(static_cast<char>('a' + random() % num_letters));
      }
      std::vector<uint32_t> ids;
      bpe.Encode(piece, &ids);
      ASSERT_EQ(ids, naive.Encode(piece)) << "seed " << seed << " " << piece;
    }
  }
}

TEST(BpeTest, ASecondRuleForAPairReplacesTheFirst) {
  Bpe bpe(OwnIds());
  bpe.AddMerge('a', 'b', 300);
  bpe.AddMerge('b', 'c', 301);
  bpe.AddMerge('a', 'b', 302);
  std::vector<uint32_t> ids;
  bpe.Encode("abc", &ids);
  bpe.Encode("ab", &ids);
  EXPECT_EQ(ids, (std::vector<uint32_t>{'a', 301, 302}));
}

TEST(BpeTest, WholePiecesComeFirst) {
  Bpe bpe(OwnIds());
  bpe.AddWholePiece("abc", 300);
  std::vector<uint32_t> ids;
  EXPECT_EQ(bpe.Encode("abc", &ids), 0);
  bpe.Encode("abca", &ids);
  EXPECT_EQ(ids, (std::vector<uint32_t>{300, 'a', 'b', 'c', 'a'}));
}

TEST(BpeTest, LooksUpLessThanThreeRulesAByte) {
  std::mt19937 random(1);
  Bpe bpe(OwnIds());
  NaiveBpe naive;
  AddRandomMerges(4, 300, &random, &bpe, &naive);
  for (const int num_letters : {1, 4, 8}) {
    for (size_t size = 1; size <= 1 << 18; size *= 8) {
      std::string piece;
      for (size_t i = 0; i < size; ++i) {
        piece.push_back(static_cast<char>('a' + random() % num_letters));
      }
      std::vector<uint32_t> ids;
      EXPECT_LT(bpe.Encode(piece, &ids), 3 * size);
    }
  }
}

}  // namespace
}  // namespace baton
