#include "engine/kv_tail.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace baton {
namespace {

constexpr uint32_t kVocab = 100;

std::string TwoEntries() {
  return EncodeKvTail({{.sample_index = 0, .token_id = 99, .logprob = -0.25f},
                       {.sample_index = 7, .token_id = 0, .logprob = 0.0f}});
}

TEST(KvTailTest, WhatIsEncodedIsDecodedBitForBit) {
  const auto entries = DecodeKvTail(TwoEntries(), kVocab);
  ASSERT_TRUE(entries.ok()) << entries.status();
  ASSERT_EQ(entries->size(), 2u);
  EXPECT_EQ((*entries)[0].token_id, 99u);
  EXPECT_EQ((*entries)[0].logprob, -0.25f);
  EXPECT_EQ((*entries)[1].sample_index, 7u);
}

TEST(KvTailTest, EveryTruncationAndExtensionIsRefused) {
  const std::string whole = TwoEntries();
  for (size_t length = 0; length < whole.size(); ++length) {
    EXPECT_EQ(DecodeKvTail(whole.substr(0, length), kVocab).status().code(),
              absl::StatusCode::kDataLoss)
        << length;
  }
  EXPECT_FALSE(DecodeKvTail(whole + '\0', kVocab).ok());
}

TEST(KvTailTest, OtherVersionsTokensAndLogprobsAreRefused) {
  std::string bytes = TwoEntries();
  bytes[0] = 2;
  EXPECT_FALSE(DecodeKvTail(bytes, kVocab).ok());
  EXPECT_FALSE(DecodeKvTail(TwoEntries(), 99).ok());
  bytes = TwoEntries();
  bytes[18] = '\xff';  // The first logprob becomes NaN.
  bytes[19] = '\x7f';
  EXPECT_FALSE(DecodeKvTail(bytes, kVocab).ok());
}

TEST(KvTailTest, ACountBeyondTheLimitIsRefused) {
  std::vector<KvTailEntry> entries(kMaxKvTailEntries);
  EXPECT_TRUE(DecodeKvTail(EncodeKvTail(entries), kVocab).ok());
  entries.emplace_back();
  EXPECT_FALSE(DecodeKvTail(EncodeKvTail(entries), kVocab).ok());
  std::string huge = TwoEntries();
  huge[4] = huge[5] = huge[6] = huge[7] = '\xff';
  EXPECT_FALSE(DecodeKvTail(huge, kVocab).ok());
}

}  // namespace
}  // namespace baton
