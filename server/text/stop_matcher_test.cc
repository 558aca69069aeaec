#include "server/text/stop_matcher.h"

#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace baton {
namespace {

struct Result {
  std::string text;
  std::optional<size_t> match;

  friend bool operator==(const Result&, const Result&) = default;
};

// The definition: the shortest beginning of `text` that ends with a stop
// string, and of those the longest, then the first.
Result Naive(const std::vector<std::string>& stops, const std::string& text) {
  for (size_t end = 1; end <= text.size(); ++end) {
    std::optional<size_t> best;
    for (size_t i = 0; i < stops.size(); ++i) {
      const bool matches = std::string_view(text).substr(0, end).ends_with(
          std::string_view(stops[i]));
      if (matches && (!best || stops[i].size() > stops[*best].size())) best = i;
    }
    if (best) return {text.substr(0, end - stops[*best].size()), best};
  }
  return {text, std::nullopt};
}

// The length of the longest suffix of `text` that begins a stop string.
size_t NaiveHeld(const std::vector<std::string>& stops,
                 const std::string& text) {
  for (size_t held = text.size(); held > 0; --held) {
    for (const std::string& stop : stops) {
      if (stop.starts_with(text.substr(text.size() - held))) return held;
    }
  }
  return 0;
}

TEST(StopMatcherTest, RandomTextGivesWhatTheDefinitionGives) {
  for (uint32_t seed = 0; seed < 3000; ++seed) {
    std::mt19937 random(seed);
    const auto random_text = [&](size_t size) {
      std::string text;
      while (text.size() < size) text.push_back('a' + random() % 3);
      return text;
    };
    std::vector<std::string> stops;
    for (size_t i = random() % 5; i > 0; --i) {
      stops.push_back(random_text(1 + random() % 9));
    }
    const std::string text = random_text(random() % 120);
    StopMatcher matcher(stops);
    Result result;
    size_t at = 0;
    while (at < text.size() && !result.match) {
      const std::string chunk = text.substr(at, random() % 6);
      at += chunk.size();
      result.match = matcher.Append(chunk, &result.text);
      if (result.match) break;
      // Exactly what may still become a match is held back.
      ASSERT_EQ(result.text.size(), at - NaiveHeld(stops, text.substr(0, at)))
          << "seed " << seed;
    }
    if (!result.match) matcher.Flush(&result.text);
    ASSERT_EQ(result, Naive(stops, text)) << "seed " << seed;
  }
}

TEST(StopMatcherTest, NothingOfAMatchIsShownWhateverTheCuts) {
  const std::string text = "Hello\n\nUser: hi";
  for (size_t cut = 0; cut <= text.size(); ++cut) {
    StopMatcher matcher({"###", "\n\nUser:"});
    std::string out;
    auto match = matcher.Append(text.substr(0, cut), &out);
    if (!match) match = matcher.Append(text.substr(cut), &out);
    EXPECT_EQ(match, 1);
    EXPECT_EQ(out, "Hello");
  }
}

TEST(StopMatcherTest, TheFirstToBeCompleteWins) {
  StopMatcher matcher({"abcd", "bc", "c"});
  std::string out;
  EXPECT_EQ(matcher.Append("xabcd", &out), 1);
  EXPECT_EQ(out, "xa");
}

TEST(StopMatcherTest, EqualStopStringsReportTheFirst) {
  StopMatcher matcher({"x", "ab", "ab"});
  std::string out;
  EXPECT_EQ(matcher.Append("ab", &out), 1);
}

TEST(StopMatcherTest, HeldTextComesOutAtTheEnd) {
  StopMatcher matcher({"</end>"});
  std::string out;
  EXPECT_EQ(matcher.Append("a</en", &out), std::nullopt);
  EXPECT_EQ(out, "a");
  matcher.Flush(&out);
  EXPECT_EQ(out, "a</en");
}

TEST(StopMatcherTest, HoldsBackWholeCharacters) {
  // The stop string's first byte begins many characters.
  StopMatcher matcher({"\xE2\x82\xAC!"});
  std::string out;
  EXPECT_EQ(matcher.Append("a\xE2\x82\xAC", &out), std::nullopt);
  EXPECT_EQ(out, "a");
  EXPECT_EQ(matcher.Append("\xE2\x82\xAB", &out), std::nullopt);
  EXPECT_EQ(out, "a\xE2\x82\xAC\xE2\x82\xAB");
}

TEST(StopMatcherTest, WithoutStopStringsAllTextPasses) {
  StopMatcher matcher({});
  std::string out;
  EXPECT_EQ(matcher.Append("abc", &out), std::nullopt);
  EXPECT_EQ(out, "abc");
}

TEST(StopMatcherTest, TheLongestListOfTheLongestStringsIsFine) {
  std::vector<std::string> stops(16, std::string(255, 'a'));
  for (char c = 'a'; c < 'a' + 16; ++c) stops[c - 'a'].push_back(c + 1);
  StopMatcher matcher(stops);
  std::string out;
  EXPECT_EQ(matcher.Append(std::string(100'000, 'a'), &out), std::nullopt);
  EXPECT_EQ(out.size(), 100'000 - 255);
  EXPECT_EQ(matcher.Append("q", &out), 15);
  EXPECT_EQ(out.size(), 100'000 - 255);
}

}  // namespace
}  // namespace baton
