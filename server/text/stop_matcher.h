// Stop strings in a stream of text: nothing of a match is ever shown.
#ifndef BATON_SERVER_TEXT_STOP_MATCHER_H_
#define BATON_SERVER_TEXT_STOP_MATCHER_H_

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace baton {

// Which match counts: the one that is complete first, so that a stream ends as
// soon as it can; of those that end at the same byte, the longest; of equal
// ones, the first in the list. It depends on the text alone, not on how it is
// cut.
//
// Takes time linear in the text, times the number of stop strings.
// Thread-compatible.
class StopMatcher final {
 public:
  // REQUIRES: no stop string is empty. An empty list lets all text through.
  explicit StopMatcher(std::vector<std::string> stop_strings);

  // Appends to `out` the text that cannot be part of a match any more. Held
  // back is the longest suffix that begins some stop string, so `out` gets
  // whole characters when `text` and the stop strings are whole characters. On
  // a match returns the stop string's index, and `out` has got all text before
  // it; the rest of `text` is dropped. REQUIRES: no match so far.
  std::optional<size_t> Append(std::string_view text, std::string* out);

  // The end of the text: what is held back was no match.
  void Flush(std::string* out);

 private:
  // Knuth-Morris-Pratt for one stop string.
  struct Pattern {
    std::string text;
    // For each prefix length n, the length of its longest proper border.
    std::vector<size_t> border;
    size_t matched = 0;  // Bytes of `text` that the input so far ends with.
  };

  // Advances every pattern by `byte`; the index of the longest complete one.
  std::optional<size_t> Advance(char byte);

  std::vector<Pattern> patterns_;
  std::string held_;
};

}  // namespace baton

#endif  // BATON_SERVER_TEXT_STOP_MATCHER_H_
