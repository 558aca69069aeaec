#include "server/text/utf8.h"

#include <algorithm>

namespace baton {
namespace {

// The characters of a lead byte: their length, and the range of the second byte
// (Unicode 15, table 3-7); later bytes are 80..BF. Length 0: no lead byte.
struct Lead {
  size_t num_bytes;
  uint8_t second_min;
  uint8_t second_max;
};

Lead LeadOf(uint8_t byte) {
  if (byte < 0xC2) return {0, 0, 0};
  if (byte < 0xE0) return {2, 0x80, 0xBF};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};  // No surrogates.
  if (byte < 0xF0) return {3, 0x80, 0xBF};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte < 0xF4) return {4, 0x80, 0xBF};
  if (byte == 0xF4) return {4, 0x80, 0x8F};  // Up to U+10FFFF.
  return {0, 0, 0};
}

// The length of the ASCII run at the start of `text`.
size_t AsciiPrefix(std::string_view text) {
  const auto end = std::find_if(text.begin(), text.end(), [](char c) {
    return static_cast<uint8_t>(c) >= 0x80;
  });
  return end - text.begin();
}

}  // namespace

Utf8Step NextUtf8(std::string_view text) {
  const uint8_t first = text[0];
  if (first < 0x80) return {Utf8Step::kCharacter, 1, first};
  const Lead lead = LeadOf(first);
  if (lead.num_bytes == 0) return {Utf8Step::kInvalid, 1, 0};
  char32_t code_point = first & (0x7F >> lead.num_bytes);
  for (size_t i = 1; i < lead.num_bytes; ++i) {
    if (i == text.size()) return {Utf8Step::kIncomplete, i, 0};
    const uint8_t byte = text[i];
    const uint8_t min = i == 1 ? lead.second_min : 0x80;
    const uint8_t max = i == 1 ? lead.second_max : 0xBF;
    if (byte < min || byte > max) return {Utf8Step::kInvalid, i, 0};
    code_point = code_point << 6 | (byte & 0x3F);
  }
  return {Utf8Step::kCharacter, lead.num_bytes, code_point};
}

size_t AppendUtf8(std::string_view bytes, std::string* out) {
  while (!bytes.empty()) {
    const size_t ascii = AsciiPrefix(bytes);
    out->append(bytes.substr(0, ascii));
    bytes.remove_prefix(ascii);
    if (bytes.empty()) break;
    const Utf8Step step = NextUtf8(bytes);
    if (step.kind == Utf8Step::kIncomplete) return step.num_bytes;
    out->append(step.kind == Utf8Step::kCharacter
                    ? bytes.substr(0, step.num_bytes)
                    : kReplacementCharacter);
    bytes.remove_prefix(step.num_bytes);
  }
  return 0;
}

bool IsUtf8(std::string_view text) {
  while (!text.empty()) {
    text.remove_prefix(AsciiPrefix(text));
    if (text.empty()) break;
    const Utf8Step step = NextUtf8(text);
    if (step.kind != Utf8Step::kCharacter) return false;
    text.remove_prefix(step.num_bytes);
  }
  return true;
}

std::string ReplaceInvalidUtf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  if (AppendUtf8(text, &out) != 0) out.append(kReplacementCharacter);
  return out;
}

void AppendCodePoint(char32_t code_point, std::string* out) {
  if (code_point < 0x80) {
    out->push_back(static_cast<char>(code_point));
    return;
  }
  const int num_bytes = code_point < 0x800 ? 2 : code_point < 0x10000 ? 3 : 4;
  const uint8_t mark = num_bytes == 2 ? 0xC0 : num_bytes == 3 ? 0xE0 : 0xF0;
  int shift = 6 * (num_bytes - 1);
  out->push_back(static_cast<char>(mark | code_point >> shift));
  while (shift > 0) {
    shift -= 6;
    out->push_back(static_cast<char>(0x80 | (code_point >> shift & 0x3F)));
  }
}

}  // namespace baton
