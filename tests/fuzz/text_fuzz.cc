// Text of users, through the tokenizer and back, and stop strings in it.
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/logging.h"
#include "server/text/detokenizer.h"
#include "server/text/stop_matcher.h"
#include "server/text/tokenizer.h"
#include "tests/fuzz/fuzz_target.h"

namespace baton {
namespace {

const Tokenizer& DemoTokenizer() {
  static const auto* const tokenizer =
      new absl::StatusOr<std::unique_ptr<const Tokenizer>>(
          Tokenizer::Load("models/tiny-deepseek-v3"));
  CHECK_OK(tokenizer->status());
  return ***tokenizer;
}

// Piece by piece it is what it is at once.
void CheckDetokenizer(const std::vector<uint32_t>& ids) {
  Detokenizer pieces(&DemoTokenizer(), false);
  std::string text;
  for (const uint32_t id : ids) pieces.Append(id, &text);
  pieces.Flush(&text);
  CHECK(text == Decode(DemoTokenizer(), ids, false));
}

struct Matched {
  std::optional<size_t> index;
  std::string text;
};

Matched Match(const std::vector<std::string>& stops, std::string_view text,
              size_t piece) {
  StopMatcher matcher(stops);
  Matched result;
  for (size_t at = 0; at < text.size(); at += piece) {
    result.index = matcher.Append(text.substr(at, piece), &result.text);
    if (result.index.has_value()) return result;
  }
  matcher.Flush(&result.text);
  return result;
}

// The first bytes are stop strings.
void CheckStops(std::string_view text) {
  std::vector<std::string> stops;
  for (const size_t length : {1, 2, 3}) {
    if (text.size() <= length) return;
    stops.emplace_back(text.substr(0, length));
    text.remove_prefix(length);
  }
  const Matched whole = Match(stops, text, text.size());
  const Matched cut = Match(stops, text, 1);
  CHECK(whole.index == cut.index);
  CHECK(whole.text == cut.text);
  CHECK(text.starts_with(whole.text));
  if (whole.index.has_value()) {
    CHECK(text.substr(whole.text.size()).starts_with(stops[*whole.index]));
  } else {
    CHECK(text == whole.text);
  }
}

}  // namespace

std::vector<std::string> FuzzSeeds() {
  return {"The quick brown fox, 12345 times.",
          "na\xc3\xafve \xe2\x82\xac 5 "
          "\xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x9a\x80",
          "\xff\xfe\x80 \xc3",
          "ababcab aab",
          std::string(64, ' '),
          "<|begin of sentence|>if (x) {\n\treturn 0;\n}\n"};
}

void FuzzOne(std::string_view bytes) {
  CheckStops(bytes);
  for (const bool parse_special : {false, true}) {
    const auto ids = DemoTokenizer().Encode(bytes, parse_special);
    if (!ids.ok()) {
      CHECK(absl::IsInvalidArgument(ids.status())) << ids.status();
      continue;
    }
    for (const uint32_t id : *ids) CHECK_LT(id, DemoTokenizer().vocab_size());
    CheckDetokenizer(*ids);
  }
}

}  // namespace baton
