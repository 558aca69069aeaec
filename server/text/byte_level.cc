#include "server/text/byte_level.h"

#include <array>

#include "server/text/utf8.h"

namespace baton {
namespace {

constexpr char32_t kNumCharacters = 0x100 + 68;

constexpr bool StandsForItself(int byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) ||
         (byte >= 0xAE && byte <= 0xFF);
}

constexpr std::array<char32_t, 256> kCharacters = [] {
  std::array<char32_t, 256> characters = {};
  char32_t next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    characters[byte] = StandsForItself(byte) ? byte : next++;
  }
  return characters;
}();

// By character; -1 where it stands for no byte.
constexpr std::array<int, kNumCharacters> kBytes = [] {
  std::array<int, kNumCharacters> bytes = {};
  for (int& byte : bytes) byte = -1;
  for (int byte = 0; byte < 256; ++byte) bytes[kCharacters[byte]] = byte;
  return bytes;
}();

}  // namespace

char32_t ByteLevelCharacter(uint8_t byte) { return kCharacters[byte]; }

std::optional<std::string> FromByteLevel(std::string_view written) {
  std::string bytes;
  while (!written.empty()) {
    const Utf8Step step = NextUtf8(written);
    if (step.kind != Utf8Step::kCharacter ||
        step.code_point >= kNumCharacters || kBytes[step.code_point] < 0) {
      return std::nullopt;
    }
    bytes.push_back(static_cast<char>(kBytes[step.code_point]));
    written.remove_prefix(step.num_bytes);
  }
  return bytes;
}

}  // namespace baton
