// UTF-8 with replacement, as Python's errors="replace" and WHATWG define it.
#ifndef BATON_SERVER_TEXT_UTF8_H_
#define BATON_SERVER_TEXT_UTF8_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace baton {

// U+FFFD.
inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";

// What the bytes of one character, or of an error, at the start of a string
// are.
struct Utf8Step {
  enum Kind { kCharacter, kInvalid, kIncomplete };
  Kind kind = kInvalid;
  // kCharacter: its bytes. kInvalid: the bytes of the maximal invalid part,
  // which one U+FFFD replaces. kIncomplete: all bytes, the beginning of a
  // character.
  size_t num_bytes = 0;
  // Of a kCharacter.
  char32_t code_point = 0;
};

// REQUIRES: `text` is not empty.
Utf8Step NextUtf8(std::string_view text);

// Appends `bytes` to `out` with U+FFFD for each maximal invalid part, up to an
// incomplete character at the end; returns how many bytes that has (0 .. 3).
size_t AppendUtf8(std::string_view bytes, std::string* out);

// Whether all of `text` is whole, valid characters.
bool IsUtf8(std::string_view text);

// `text` with U+FFFD for all that is invalid, an incomplete end too.
std::string ReplaceInvalidUtf8(std::string_view text);

// Appends the character's bytes. REQUIRES: a Unicode scalar value.
void AppendCodePoint(char32_t code_point, std::string* out);

}  // namespace baton

#endif  // BATON_SERVER_TEXT_UTF8_H_
