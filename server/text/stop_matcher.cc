#include "server/text/stop_matcher.h"

#include <algorithm>
#include <utility>

namespace baton {

StopMatcher::StopMatcher(std::vector<std::string> stop_strings) {
  for (std::string& text : stop_strings) {
    // border[n] for n >= 1: the longest proper prefix of text[0, n) that also
    // ends it.
    std::vector<size_t> border(text.size() + 1, 0);
    for (size_t n = 2; n <= text.size(); ++n) {
      size_t length = border[n - 1];
      while (length > 0 && text[length] != text[n - 1]) length = border[length];
      border[n] = text[length] == text[n - 1] ? length + 1 : 0;
    }
    patterns_.push_back({.text = std::move(text), .border = std::move(border)});
  }
}

std::optional<size_t> StopMatcher::Append(std::string_view text,
                                          std::string* out) {
  for (const char byte : text) {
    held_.push_back(byte);
    const std::optional<size_t> match = Advance(byte);
    if (match.has_value()) {
      out->append(held_, 0, held_.size() - patterns_[*match].text.size());
      held_.clear();
      return match;
    }
  }
  size_t longest = 0;
  for (const Pattern& pattern : patterns_) {
    longest = std::max(longest, pattern.matched);
  }
  const size_t safe = held_.size() - longest;
  out->append(held_, 0, safe);
  held_.erase(0, safe);
  return std::nullopt;
}

void StopMatcher::Flush(std::string* out) {
  out->append(held_);
  held_.clear();
}

std::optional<size_t> StopMatcher::Advance(char byte) {
  std::optional<size_t> complete;
  for (size_t i = 0; i < patterns_.size(); ++i) {
    Pattern& pattern = patterns_[i];
    size_t& matched = pattern.matched;
    while (matched > 0 && pattern.text[matched] != byte) {
      matched = pattern.border[matched];
    }
    if (pattern.text[matched] == byte) ++matched;
    if (matched != pattern.text.size()) continue;
    if (!complete.has_value() ||
        pattern.text.size() > patterns_[*complete].text.size()) {
      complete = i;
    }
  }
  return complete;
}

}  // namespace baton
