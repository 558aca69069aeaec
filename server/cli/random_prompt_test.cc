#include "server/cli/random_prompt.h"

#include <algorithm>
#include <span>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace baton {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::Ge;
using ::testing::Lt;

constexpr uint32_t kVocab = 1000;

TEST(RandomPromptTest, BlocksOfTheSameNameHaveTheSameTokens) {
  const TimedRequest first = {
      .shape = {.prompt_tokens = 150}, .blocks = {1, 2, 3}, .block_tokens = 64};
  TimedRequest second = first;
  second.blocks = {1, 4, 3};
  const auto a = RandomPrompt(first, kVocab, 5, 0);
  const auto b = RandomPrompt(second, kVocab, 5, 1);
  ASSERT_EQ(a.size(), 150u);
  ASSERT_EQ(b.size(), 150u);
  EXPECT_TRUE(std::equal(a.begin(), a.begin() + 64, b.begin()));
  EXPECT_FALSE(std::equal(a.begin() + 64, a.begin() + 128, b.begin() + 64));
  EXPECT_TRUE(std::equal(a.begin() + 128, a.end(), b.begin() + 128));
  EXPECT_NE(RandomPrompt(first, kVocab, 6, 0), a);
}

TEST(RandomPromptTest, PromptsWithoutBlocksDifferByTheirIndex) {
  const TimedRequest request = {.shape = {.prompt_tokens = 100}};
  const auto a = RandomPrompt(request, kVocab, 5, 0);
  EXPECT_EQ(RandomPrompt(request, kVocab, 5, 0), a);
  EXPECT_NE(RandomPrompt(request, kVocab, 5, 1), a);
  EXPECT_THAT(a, Each(AllOf(Ge(kFirstPlainToken), Lt(kVocab))));
}

}  // namespace
}  // namespace baton
