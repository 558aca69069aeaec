// Tokens that stand for themselves in text, found before any other step.
#ifndef BATON_SERVER_TEXT_ADDED_TOKENS_H_
#define BATON_SERVER_TEXT_ADDED_TOKENS_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace baton {

// A set of strings with ids, and the search for them. Thread-safe once filled.
class AddedTokenMatcher final {
 public:
  struct Match {
    size_t begin = 0;
    size_t end = 0;
    uint32_t id = 0;
  };

  // A second id for the same content replaces the first. REQUIRES: not empty.
  void Add(std::string_view content, uint32_t id);

  // The leftmost match at or after `begin`; of those, the longest.
  std::optional<Match> Find(std::string_view text, size_t begin) const;

  // The id of the token with exactly this content.
  std::optional<uint32_t> Lookup(std::string_view content) const;

 private:
  static constexpr uint32_t kNone = UINT32_MAX;

  // The longest match that begins at `begin`; its end is 0 where there is none.
  Match LongestAt(std::string_view text, size_t begin) const;
  uint32_t Child(uint32_t node, char byte) const;

  // A trie: (node << 8 | byte) to the next node; node 0 is the root.
  absl::flat_hash_map<uint64_t, uint32_t> children_;
  std::vector<uint32_t> ids_ = {kNone};  // By node.
};

}  // namespace baton

#endif  // BATON_SERVER_TEXT_ADDED_TOKENS_H_
