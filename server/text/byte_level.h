// The printable alphabet in which byte-level BPE files write raw bytes.
#ifndef BATON_SERVER_TEXT_BYTE_LEVEL_H_
#define BATON_SERVER_TEXT_BYTE_LEVEL_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace baton {

// The character that stands for `byte`, as GPT-2 defined it: printable
// characters of Latin-1 for themselves, the other 68 bytes, in order, U+0100 to
// U+0143.
char32_t ByteLevelCharacter(uint8_t byte);

// The bytes that `written` stands for; nothing where it has another character.
std::optional<std::string> FromByteLevel(std::string_view written);

}  // namespace baton

#endif  // BATON_SERVER_TEXT_BYTE_LEVEL_H_
