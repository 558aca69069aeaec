// Token ids to text, token by token, never half a character.
#ifndef BATON_SERVER_TEXT_DETOKENIZER_H_
#define BATON_SERVER_TEXT_DETOKENIZER_H_

#include <cstdint>
#include <span>
#include <string>

#include "server/text/tokenizer.h"

namespace baton {

// The text of one sample as its tokens come. Whatever the cuts, the pieces
// together are Decode() of all ids. Thread-compatible.
class Detokenizer final {
 public:
  // `tokenizer` is borrowed and outlives this. With skip_special_tokens, tokens
  // that the model's files flag as special give no text.
  Detokenizer(const Tokenizer* tokenizer, bool skip_special_tokens);

  // Appends to `out` the characters that `id` completes. At most three bytes,
  // the beginning of a character, are held back. Bytes that can no longer
  // become a character are U+FFFD, one for each maximal invalid part. An id
  // without a token gives no text.
  void Append(uint32_t id, std::string* out);

  // The end: what is held back will not be completed, and becomes one U+FFFD.
  void Flush(std::string* out);

 private:
  const Tokenizer* const tokenizer_;
  const bool skip_special_tokens_;
  std::string pending_;  // A character's beginning: 0 .. 3 bytes.
};

// The text of all `ids` at once.
std::string Decode(const Tokenizer& tokenizer, std::span<const uint32_t> ids,
                   bool skip_special_tokens);

}  // namespace baton

#endif  // BATON_SERVER_TEXT_DETOKENIZER_H_
