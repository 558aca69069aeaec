#include "server/text/added_tokens.h"

#include <string>

#include "gtest/gtest.h"

namespace baton {
namespace {

TEST(AddedTokenMatcherTest, FindsTheLeftmostAndOfThoseTheLongest) {
  AddedTokenMatcher matcher;
  matcher.Add("ab", 1);
  matcher.Add("abcd", 2);
  matcher.Add("bcde", 3);
  const std::string text = "xabcdeabcx";
  const auto first = matcher.Find(text, 0);
  ASSERT_TRUE(first.has_value());
  EXPECT_EQ(first->begin, 1);
  EXPECT_EQ(first->end, 5);
  EXPECT_EQ(first->id, 2);
  const auto second = matcher.Find(text, first->end);
  ASSERT_TRUE(second.has_value());
  EXPECT_EQ(second->begin, 6);
  EXPECT_EQ(second->end, 8);
  EXPECT_EQ(second->id, 1);
  EXPECT_FALSE(matcher.Find(text, second->end).has_value());
}

TEST(AddedTokenMatcherTest, PrefixesAreNoTokens) {
  AddedTokenMatcher matcher;
  matcher.Add("abc", 1);
  EXPECT_EQ(matcher.Lookup("abc"), 1);
  EXPECT_EQ(matcher.Lookup("ab"), std::nullopt);
  EXPECT_EQ(matcher.Lookup("abcd"), std::nullopt);
  EXPECT_EQ(matcher.Lookup(""), std::nullopt);
  EXPECT_FALSE(matcher.Find("ababab", 0).has_value());
}

TEST(AddedTokenMatcherTest, AnEmptySetFindsNothing) {
  EXPECT_FALSE(AddedTokenMatcher().Find("abc", 0).has_value());
}

}  // namespace
}  // namespace baton
