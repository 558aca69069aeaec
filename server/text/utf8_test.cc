#include "server/text/utf8.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace baton {
namespace {

constexpr char kR[] = "\xEF\xBF\xBD";

TEST(Utf8Test, EveryScalarValueSurvives) {
  for (char32_t c = 0; c <= 0x10FFFF; ++c) {
    if (c == 0xD800) c = 0xE000;
    std::string text;
    AppendCodePoint(c, &text);
    const Utf8Step step = NextUtf8(text);
    ASSERT_EQ(step.kind, Utf8Step::kCharacter);
    ASSERT_EQ(step.num_bytes, text.size());
    ASSERT_EQ(step.code_point, c);
    ASSERT_EQ(ReplaceInvalidUtf8(text), text);
  }
}

// As bytes.decode("utf-8", errors="replace") of Python gives them.
TEST(Utf8Test, EachMaximalInvalidPartIsOneReplacement) {
  const std::string r = kR;
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"\x80", r},
      {"\xC0\xAF", r + r},
      {"\xC1\xBF", r + r},
      {"\xE0\x80\x80", r + r + r},
      {"\xE0\xA0", r},
      {"\xE2\x82z", r + "z"},
      {"\xED\xA0\x80", r + r + r},  // A surrogate.
      {"\xF0\x8F\xBF\xBF", r + r + r + r},
      {"\xF0\x9F\x98", r},
      {"\xF0\x9F\x98\xF0\x9F\x98\x80", r + "\xF0\x9F\x98\x80"},
      {"\xF1\x80\x80\xE1\x80\xC2z", r + r + r + "z"},
      {"\xF4\x90\x80\x80", r + r + r + r},
      {"\xF5\xFF", r + r},
      {"a\xC3", "a" + r},
      {"\xC3\xA9\xC3", "\xC3\xA9" + r},
  };
  for (const auto& [bytes, expected] : cases) {
    EXPECT_EQ(ReplaceInvalidUtf8(bytes), expected);
    EXPECT_FALSE(IsUtf8(bytes));
    EXPECT_TRUE(IsUtf8(expected));
  }
}

TEST(Utf8Test, AnIncompleteEndIsToldApartFromAnError) {
  std::string out;
  EXPECT_EQ(AppendUtf8("a\xF0\x9F\x98", &out), 3);
  EXPECT_EQ(out, "a");
  EXPECT_EQ(AppendUtf8("\xF0\x9F\x41", &out), 0);
  EXPECT_EQ(out, std::string("a") + kR + "A");
  EXPECT_EQ(AppendUtf8("\xFF", &out), 0);
  EXPECT_EQ(AppendUtf8("", &out), 0);
}

TEST(Utf8Test, EmptyTextIsFine) {
  EXPECT_TRUE(IsUtf8(""));
  EXPECT_EQ(ReplaceInvalidUtf8(""), "");
}

}  // namespace
}  // namespace baton
