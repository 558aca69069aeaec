#include "engine/prefix_chain.h"

#include <numeric>
#include <span>
#include <vector>

#include "base/prefix_key.h"
#include "gtest/gtest.h"

namespace baton {
namespace {

std::vector<uint32_t> Tokens(size_t count) {
  std::vector<uint32_t> tokens(count);
  std::iota(tokens.begin(), tokens.end(), 100u);
  return tokens;
}

TEST(PrefixChainTest, NamesWholeBlocksHoweverTheyCome) {
  const std::vector<uint32_t> tokens = Tokens(200);
  const std::span<const uint32_t> all(tokens);
  PrefixChain whole("salt"), parts("salt");
  whole.Extend(all);
  EXPECT_EQ(whole.num_keys(), 3u);
  for (size_t end = 0; end <= all.size(); end += 25) {
    parts.Extend(all.first(end));
    EXPECT_EQ(parts.num_keys(), end / 64);
  }
  PrefixKey key = RootPrefixKey("salt");
  for (uint32_t block = 0; block < 3; ++block) {
    key = NextPrefixKey(key, all.subspan(block * 64, 64));
    EXPECT_EQ(whole.key(block), key);
    EXPECT_EQ(parts.key(block), key);
  }
}

TEST(PrefixChainTest, OtherSaltsAndFormsAreOtherNames) {
  const std::vector<uint32_t> tokens = Tokens(64);
  std::vector<PrefixChain> chains = {PrefixChain("a"), PrefixChain("b"),
                                     PrefixChain(),
                                     PrefixChain("a", PrefixForm::kExpanded)};
  for (PrefixChain& chain : chains) chain.Extend(tokens);
  for (size_t i = 0; i < chains.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      EXPECT_NE(chains[i].key(0), chains[j].key(0));
      EXPECT_NE(chains[i].KeyOfAll(tokens), chains[j].KeyOfAll(tokens));
    }
  }
}

TEST(PrefixChainTest, TheKeyOfAllCountsTheRestToo) {
  const std::vector<uint32_t> tokens = Tokens(130);
  const std::span<const uint32_t> all(tokens);
  PrefixChain chain;
  chain.Extend(all);
  std::vector<PrefixKey> keys;
  for (const size_t length : {1, 63, 64, 65, 127, 128, 129, 130}) {
    keys.push_back(chain.KeyOfAll(all.first(length)));
  }
  for (size_t i = 0; i < keys.size(); ++i) {
    for (size_t j = 0; j < i; ++j) EXPECT_NE(keys[i], keys[j]);
  }
}

}  // namespace
}  // namespace baton
