#include "engine/kv_tail.h"

#include <cmath>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "gtest/gtest.h"

namespace baton {
namespace {

constexpr uint32_t kVocab = 100;
constexpr uint32_t kWidth = 3;

std::string TwoEntries() {
  return EncodeKvTail({.entries = {{.sample_index = 0, .drawn = {99, -0.25f}},
                                   {.sample_index = 7,
                                    .drawn = {0, 0.0f},
                                    .top = {{3, -0.5f}, {0, -1.0f}}}},
                       .hidden = {1.5f, -0.0f, 1e-42f}});
}

absl::StatusOr<KvTail> Decode(std::string_view bytes) {
  return DecodeKvTail(bytes, kVocab, kWidth);
}

TEST(KvTailTest, WhatIsEncodedIsDecodedBitForBit) {
  const auto tail = Decode(TwoEntries());
  ASSERT_TRUE(tail.ok()) << tail.status();
  ASSERT_EQ(tail->entries.size(), 2u);
  EXPECT_EQ(tail->entries[0].drawn.token_id, 99u);
  EXPECT_EQ(tail->entries[0].drawn.logprob, -0.25f);
  EXPECT_TRUE(tail->entries[0].top.empty());
  EXPECT_EQ(tail->entries[1].sample_index, 7u);
  ASSERT_EQ(tail->entries[1].top.size(), 2u);
  EXPECT_EQ(tail->entries[1].top[0].token_id, 3u);
  EXPECT_EQ(tail->entries[1].top[1].logprob, -1.0f);
  EXPECT_EQ(tail->hidden, (std::vector<float>{1.5f, -0.0f, 1e-42f}));
  EXPECT_TRUE(std::signbit(tail->hidden[1]));
}

TEST(KvTailTest, EveryTruncationAndExtensionIsRefused) {
  const std::string whole = TwoEntries();
  for (size_t length = 0; length < whole.size(); ++length) {
    EXPECT_EQ(Decode(whole.substr(0, length)).status().code(),
              absl::StatusCode::kDataLoss)
        << length;
  }
  EXPECT_FALSE(Decode(whole + '\0').ok());
}

TEST(KvTailTest, OtherVersionsTokensAndLogprobsAreRefused) {
  std::string bytes = TwoEntries();
  bytes[0] = 1;
  EXPECT_FALSE(Decode(bytes).ok());
  EXPECT_FALSE(DecodeKvTail(TwoEntries(), 99, kWidth).ok());
  bytes = TwoEntries();
  bytes[22] = '\xff';  // The first logprob becomes NaN.
  bytes[23] = '\x7f';
  EXPECT_FALSE(Decode(bytes).ok());
}

TEST(KvTailTest, HiddenStatesOfAnotherWidthOrNoNumbersAreRefused) {
  for (const uint32_t width : {0u, kWidth - 1, kWidth + 1, 0x40000003u}) {
    EXPECT_FALSE(DecodeKvTail(TwoEntries(), kVocab, width).ok()) << width;
  }
  std::string bytes = TwoEntries();
  bytes[bytes.size() - 2] = '\x80';  // The last one becomes infinite.
  bytes[bytes.size() - 1] = '\x7f';
  EXPECT_FALSE(Decode(bytes).ok());
}

TEST(KvTailTest, MoreAlternativesThanARowHasOrStrangeOnesAreRefused) {
  KvTail tail;
  tail.entries.emplace_back();
  tail.entries[0].top.resize(kMaxTopLogprobs);
  EXPECT_TRUE(DecodeKvTail(EncodeKvTail(tail), kVocab, 0).ok());
  for (const SampledToken& bad :
       {SampledToken{kVocab, 0.0f}, SampledToken{kNoToken, 0.0f},
        SampledToken{1, -std::numeric_limits<float>::infinity()}}) {
    KvTail strange = tail;
    strange.entries[0].top.back() = bad;
    EXPECT_FALSE(DecodeKvTail(EncodeKvTail(strange), kVocab, 0).ok());
  }
  tail.entries[0].top.emplace_back();
  EXPECT_FALSE(DecodeKvTail(EncodeKvTail(tail), kVocab, 0).ok());
}

TEST(KvTailTest, ACountBeyondTheLimitIsRefused) {
  KvTail tail;
  tail.entries.resize(kMaxKvTailEntries);
  EXPECT_TRUE(DecodeKvTail(EncodeKvTail(tail), kVocab, 0).ok());
  tail.entries.emplace_back();
  EXPECT_FALSE(DecodeKvTail(EncodeKvTail(tail), kVocab, 0).ok());
  std::string huge = TwoEntries();
  huge[4] = huge[5] = huge[6] = huge[7] = '\xff';
  EXPECT_FALSE(Decode(huge).ok());
}

}  // namespace
}  // namespace baton
