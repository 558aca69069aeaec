#include "server/text/splitter.h"

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gtest/gtest.h"

namespace baton {
namespace {

std::vector<std::string> Split(std::string_view pattern,
                               std::string_view text) {
  const auto splitter = Splitter::Create(pattern);
  EXPECT_TRUE(splitter.ok()) << splitter.status();
  std::vector<std::string_view> pieces;
  const absl::Status status = splitter->Split({&text, 1}, &pieces);
  EXPECT_TRUE(status.ok()) << status;
  return {pieces.begin(), pieces.end()};
}

using Pieces = std::vector<std::string>;

TEST(SplitterTest, MatchesAndWhatLiesBetweenArePieces) {
  EXPECT_EQ(Split("\\d{1,3}", "a12345b"), (Pieces{"a", "123", "45", "b"}));
  EXPECT_EQ(Split("\\d", "abc"), (Pieces{"abc"}));
  EXPECT_EQ(Split("\\d", ""), (Pieces{}));
}

TEST(SplitterTest, EmptyMatchesCutAndGoOn) {
  EXPECT_EQ(Split("x*", "a\xC3\xA9xxb"), (Pieces{"a", "\xC3\xA9", "xx", "b"}));
  EXPECT_EQ(Split("(?=b)", "abab"), (Pieces{"a", "ba", "b"}));
}

TEST(SplitterTest, CharactersAreUnicode) {
  EXPECT_EQ(Split("\\p{L}+", "1\xC3\xA9t\xC3\xA9!"),
            (Pieces{"1", "\xC3\xA9t\xC3\xA9", "!"}));
  EXPECT_EQ(Split("[\xE4\xB8\x80-\xE9\xBE\xA5]+", "a\xE4\xB8\xAD\xE6\x96\x87"),
            (Pieces{"a", "\xE4\xB8\xAD\xE6\x96\x87"}));
  EXPECT_EQ(Split("\\d+", "1\xD9\xA1"), (Pieces{"1\xD9\xA1"}));
}

TEST(SplitterTest, SpaceIsUnicodesWhiteSpace) {
  // NEL, no-break space and the ideographic space are; U+180E is no longer.
  for (const std::string space : {"\xC2\x85", "\xC2\xA0", "\xE3\x80\x80"}) {
    EXPECT_EQ(Split("\\s+", "a" + space + "b"), (Pieces{"a", space, "b"}));
  }
  EXPECT_EQ(Split("\\s+", "a\xE1\xA0\x8E z"),
            (Pieces{"a\xE1\xA0\x8E", " ", "z"}));
  EXPECT_EQ(Split("[\\Sx]+", " \xE1\xA0\x8E "),
            (Pieces{" ", "\xE1\xA0\x8E", " "}));
}

TEST(SplitterTest, ReadsThePatternsOfOtherFamilies) {
  const std::string llama3 =
      "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}"
      "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
  EXPECT_EQ(Split(llama3, "It'S  1234 ok!\n"),
            (Pieces{"It", "'S", " ", " ", "123", "4", " ok", "!\n"}));
  const std::string gpt4 =
      "'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+|\\p{N}{1,3}"
      "| ?[^\\s\\p{L}\\p{N}]++[\\r\\n]*|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+";
  EXPECT_EQ(Split(gpt4, "I'm (so) sure\n\n"),
            (Pieces{"I", "'m", " (", "so", ")", " sure", "\n\n"}));
}

TEST(SplitterTest, DollarStandsAtTheEndsOfLines) {
  EXPECT_EQ(Split(" +$", "a  \nb  c "), (Pieces{"a", "  ", "\nb  c", " "}));
}

TEST(SplitterTest, PatternsThatMeanSomethingElseToPcre2AreRefused) {
  for (const std::string pattern :
       {"\\h", "\\w+", "\\b", "\\Ra", "\\v", "\\1", "\\p{Han}", "\\pL", "\\p{L",
        "[a&&b]", "[a[bc]]", "[[:alpha:]]", "(?m:.)", "(?x)a", "\\", "a\\"}) {
    const absl::Status status = Splitter::Create(pattern).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << pattern;
  }
  EXPECT_EQ(Splitter::Create("ab\\h").status().message(),
            "pattern: at byte 2: means something else to PCRE2, or nothing");
}

TEST(SplitterTest, BadPatternsAreErrorsWithTheirPlace) {
  for (const std::string pattern :
       {"(", "a)", "[a", "*a", "a{2,1}", "\xFF", "(?<=a+)b", "\\p{Zx}"}) {
    const absl::Status status = Splitter::Create(pattern).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << pattern;
    EXPECT_EQ(std::string(status.message()).find("pattern: at byte "), 0);
  }
}

TEST(SplitterTest, APatternThatTakesTooLongIsAnError) {
  const auto splitter = Splitter::Create("(a+)+$");
  ASSERT_TRUE(splitter.ok()) << splitter.status();
  std::vector<std::string_view> pieces;
  const std::string long_text = std::string(5000, 'a') + "b";
  const std::string_view text = long_text;
  EXPECT_EQ(splitter->Split({&text, 1}, &pieces).code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(SplitterTest, DeepBacktrackingFallsBackFromCompiledCode) {
  // Each turn of the group needs stack; 100,000 are more than compiled code
  // has.
  const std::string text(200'000, 'a');
  EXPECT_EQ(Split("(?:a|b)+", text), (Pieces{text}));
}

}  // namespace
}  // namespace baton
