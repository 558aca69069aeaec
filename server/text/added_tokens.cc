#include "server/text/added_tokens.h"

namespace baton {
namespace {

uint64_t Edge(uint32_t node, char byte) {
  return static_cast<uint64_t>(node) << 8 | static_cast<uint8_t>(byte);
}

}  // namespace

void AddedTokenMatcher::Add(std::string_view content, uint32_t id) {
  uint32_t node = 0;
  for (const char byte : content) {
    const auto [child, is_new] = children_.try_emplace(
        Edge(node, byte), static_cast<uint32_t>(ids_.size()));
    if (is_new) ids_.push_back(kNone);
    node = child->second;
  }
  ids_[node] = id;
}

std::optional<AddedTokenMatcher::Match> AddedTokenMatcher::Find(
    std::string_view text, size_t begin) const {
  for (; begin < text.size(); ++begin) {
    const Match match = LongestAt(text, begin);
    if (match.end != 0) return match;
  }
  return std::nullopt;
}

std::optional<uint32_t> AddedTokenMatcher::Lookup(
    std::string_view content) const {
  uint32_t node = 0;
  for (const char byte : content) {
    node = Child(node, byte);
    if (node == kNone) return std::nullopt;
  }
  if (ids_[node] == kNone) return std::nullopt;
  return ids_[node];
}

AddedTokenMatcher::Match AddedTokenMatcher::LongestAt(std::string_view text,
                                                      size_t begin) const {
  Match match{.begin = begin};
  uint32_t node = 0;
  for (size_t i = begin; i < text.size(); ++i) {
    node = Child(node, text[i]);
    if (node == kNone) break;
    if (ids_[node] == kNone) continue;
    match.end = i + 1;
    match.id = ids_[node];
  }
  return match;
}

uint32_t AddedTokenMatcher::Child(uint32_t node, char byte) const {
  const auto child = children_.find(Edge(node, byte));
  return child == children_.end() ? kNone : child->second;
}

}  // namespace baton
