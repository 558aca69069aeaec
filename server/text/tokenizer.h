// Text to token ids: byte-level BPE as Hugging Face's tokenizer.json states it.
#ifndef BATON_SERVER_TEXT_TOKENIZER_H_
#define BATON_SERVER_TEXT_TOKENIZER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace baton {

// The path of a text:
//
//   text ── added tokens split out (parse_special only; leftmost, then longest)
//        ── pre-tokenizer: Split patterns one after the other, into pieces
//        ── BPE of each piece's bytes ── ids
//
// What tokenizer.json may ask for and this does not do is refused by Load,
// never ignored. Patterns are Oniguruma's in the file and PCRE2's here;
// characters newer than either library's Unicode tables may be split
// differently.
//
// Thread-safe: immutable after Load.
class Tokenizer final {
 public:
  // Reads tokenizer.json and tokenizer_config.json. Errors name file and field.
  static absl::StatusOr<std::unique_ptr<const Tokenizer>> Load(
      const std::string& model_folder);

  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;
  ~Tokenizer();

  // The ids of `text`; no BOS is added. With parse_special, each added token
  // (special or not) written out in the text becomes its id; without, the
  // result holds no added token whatever the text says. Bytes that are no UTF-8
  // are read as U+FFFD, one for each maximal invalid part, like Python's
  // errors="replace".
  //
  // Time grows with the length of the text, whatever it holds. The only error
  // is INVALID_ARGUMENT, when a pattern gives up on this text (PCRE2's match
  // limit).
  absl::StatusOr<std::vector<uint32_t>> Encode(std::string_view text,
                                               bool parse_special) const;

  // One more than the largest id. A model's logits may be wider (padding).
  uint32_t vocab_size() const;

  // tokenizer_config.json's bos_token, and whether plain prompts begin with it.
  // add_bos() implies that bos_id() has a value.
  std::optional<uint32_t> bos_id() const;
  bool add_bos() const;

  // The raw bytes of a token, not always whole UTF-8 characters; an added
  // token's content. Empty where no token has this id. Lives as long as this.
  std::string_view TokenBytes(uint32_t id) const;

  // Whether the file flags the token as special: what detokenizers leave out.
  bool IsSpecial(uint32_t id) const;

  // The id of the added token with this content, or NOT_FOUND.
  absl::StatusOr<uint32_t> TokenId(std::string_view content) const;

 private:
  struct State;

  explicit Tokenizer(std::unique_ptr<const State> state);

  const std::unique_ptr<const State> state_;
};

}  // namespace baton

#endif  // BATON_SERVER_TEXT_TOKENIZER_H_
