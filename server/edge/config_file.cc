#include "server/edge/config_file.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>
#include <string_view>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace baton {
namespace {

// More than every flag at its longest: a file of this size is a mistake.
constexpr size_t kMaxFileBytes = 1 << 20;
constexpr char kBlanks[] = " \t";
constexpr char kYamlSigns[] = "'[]{},>|*&!%@`#";

// What quotes hide behind a backslash, as pairs.
constexpr std::pair<char, char> kEscapes[] = {
    {'"', '"'}, {'\\', '\\'}, {'n', '\n'}, {'t', '\t'}};

std::optional<char> Unescaped(char escape) {
  for (const auto& [letter, meaning] : kEscapes) {
    if (letter == escape) return meaning;
  }
  return std::nullopt;
}

bool IsName(const std::string& name) {
  return !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
    return absl::ascii_islower(c) || absl::ascii_isdigit(c) || c == '_';
  });
}

bool IsCommentOrEmpty(std::string_view text) {
  const size_t first = text.find_first_not_of(kBlanks);
  return first == std::string_view::npos || text[first] == '#';
}

absl::StatusOr<std::string> ParseQuoted(std::string_view text) {
  std::string value;
  for (size_t i = 1; i < text.size(); ++i) {
    if (text[i] == '"') {
      if (IsCommentOrEmpty(text.substr(i + 1))) return value;
      return absl::InvalidArgumentError("has text behind its quotes");
    }
    if (text[i] != '\\') {
      value += text[i];
      continue;
    }
    const std::optional<char> meant =
        ++i < text.size() ? Unescaped(text[i]) : std::nullopt;
    if (!meant.has_value()) {
      return absl::InvalidArgumentError(
          "has a backslash; quoted, it is written \\\\");
    }
    value += *meant;
  }
  return absl::InvalidArgumentError("has no closing quotes");
}

absl::StatusOr<std::string> ParseValue(std::string_view text) {
  if (IsCommentOrEmpty(text)) {
    return absl::InvalidArgumentError("has no value; an empty one is \"\"");
  }
  if (std::strchr(kBlanks, text.front()) == nullptr) {
    return absl::InvalidArgumentError("needs a blank behind its colon");
  }
  text.remove_prefix(text.find_first_not_of(kBlanks));
  if (text.front() == '"') return ParseQuoted(text);
  if (std::strchr(kYamlSigns, text.front()) != nullptr) {
    return absl::InvalidArgumentError(
        "means something else in YAML: put the value in double quotes; a list "
        "is one line with commas");
  }
  const size_t comment =
      std::min({text.find(" #"), text.find("\t#"), text.size()});
  text = text.substr(0, comment);
  return std::string(text.substr(0, text.find_last_not_of(kBlanks) + 1));
}

// The place is the caller's.
absl::StatusOr<ConfigLine> ParseLine(const std::string& line) {
  const size_t colon = line.find(':');
  std::string name = line.substr(0, colon);
  std::replace(name.begin(), name.end(), '-', '_');
  if (colon == std::string::npos || !IsName(name)) {
    return absl::InvalidArgumentError("must be \"name: value\" or a comment");
  }
  absl::StatusOr<std::string> value =
      ParseValue(std::string_view(line).substr(colon + 1));
  if (!value.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": ", value.status().message()));
  }
  return ConfigLine{.name = std::move(name), .value = *std::move(value)};
}

}  // namespace

absl::StatusOr<std::vector<ConfigLine>> ParseConfig(const std::string& text,
                                                    const std::string& path) {
  std::vector<ConfigLine> lines;
  std::map<std::string, std::string> places;
  std::istringstream in(text);
  int number = 0;
  for (std::string line; std::getline(in, line);) {
    const std::string place = absl::StrCat(path, ":", ++number);
    if (!line.empty() && line.back() == '\r') line.pop_back();
    if (IsCommentOrEmpty(line)) continue;
    absl::StatusOr<ConfigLine> parsed = ParseLine(line);
    if (!parsed.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat(place, ": ", parsed.status().message()));
    }
    const auto [first, is_new] = places.emplace(parsed->name, place);
    if (!is_new) {
      return absl::InvalidArgumentError(absl::StrCat(
          place, ": ", parsed->name, ": is also at ", first->second));
    }
    parsed->place = place;
    lines.push_back(*std::move(parsed));
  }
  return lines;
}

absl::StatusOr<std::vector<ConfigLine>> ReadConfigFile(
    const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text(kMaxFileBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (file.bad() || (file.fail() && !file.eof())) {
    return absl::NotFoundError(absl::StrCat(path, ": ", std::strerror(errno)));
  }
  text.resize(static_cast<size_t>(file.gcount()));
  if (text.size() > kMaxFileBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": more than ", kMaxFileBytes, " bytes"));
  }
  return ParseConfig(text, path);
}

std::string FormatConfigValue(const std::string& value) {
  const bool is_plain =
      !value.empty() &&
      value == std::string(absl::StripAsciiWhitespace(value)) &&
      std::strchr(kYamlSigns, value.front()) == nullptr &&
      value.front() != '"' && value.front() != '-' && value.front() != '?' &&
      !absl::StrContains(value, " #") && !absl::StrContains(value, ": ") &&
      value.back() != ':' &&
      std::all_of(value.begin(), value.end(),
                  [](char c) { return static_cast<unsigned char>(c) >= ' '; });
  if (is_plain) return value;
  std::string quoted = "\"";
  for (const char c : value) {
    const auto escape =
        std::find_if(std::begin(kEscapes), std::end(kEscapes),
                     [c](const auto& pair) { return pair.second == c; });
    if (escape != std::end(kEscapes)) {
      quoted.append({'\\', escape->first});
    } else {
      quoted += c;
    }
  }
  return quoted + '"';
}

}  // namespace baton
