// What tokenizer.json says, checked: the plain values a Tokenizer is built
// from.
#ifndef BATON_SERVER_TEXT_TOKENIZER_FILE_H_
#define BATON_SERVER_TEXT_TOKENIZER_FILE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "server/text/json_file.h"

namespace baton {

// Ids are below this; a larger one is taken for a mistake.
inline constexpr uint32_t kMaxVocabSize = 1 << 22;

struct AddedToken {
  uint32_t id = 0;
  std::string content;
  bool special = false;
  // Searched for after those that are not.
  bool normalized = false;
};

struct TokenizerFile {
  // Tokens as written in the file, in the byte-level alphabet.
  absl::flat_hash_map<std::string, uint32_t> vocab;
  // Ids of left, right and merged token, by rank.
  struct Merge {
    uint32_t left;
    uint32_t right;
    uint32_t merged;
  };
  std::vector<Merge> merges;
  bool ignore_merges = false;
  std::vector<AddedToken> added_tokens;
  // Split patterns, applied one after the other.
  std::vector<std::string> patterns;
  // The pattern's field in the file, for errors.
  std::vector<std::string> pattern_fields;
};

// Reads `path`. Errors name file and field; what is not byte-level BPE, or asks
// for a step that Tokenizer does not have, is one.
absl::StatusOr<TokenizerFile> ReadTokenizerFile(const std::string& path);

// The content of a token that tokenizer_config.json names (bos_token): a
// string, or an object with `content`; nothing where it is absent.
absl::StatusOr<std::optional<std::string>> ReadTokenContent(
    const JsonObject& config, const char* key);

}  // namespace baton

#endif  // BATON_SERVER_TEXT_TOKENIZER_FILE_H_
