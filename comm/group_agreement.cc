#include "comm/group_agreement.h"

#include <algorithm>
#include <numeric>

namespace baton {
namespace {

// Of a value in a refusal: two of them and the words around fit a text.
constexpr size_t kMaxShownBytes = 256;

std::string FormatRange(uint32_t first, uint32_t last) {
  const std::string text = std::to_string(first);
  return first == last ? text : text + ".." + std::to_string(last);
}

std::string Who(const GroupMember& member) {
  return "ranks " + FormatRanks(member);
}

GroupRefused Differs(const GroupHello& leader, const GroupHello& hello,
                     std::string_view field, std::string_view there,
                     std::string_view here) {
  return {std::string(field),
          BoundedText(std::string(field) + " is " +
                      std::string(there.substr(0, kMaxShownBytes)) + " on " +
                      Who(leader.member) + " (the leader) and " +
                      std::string(here.substr(0, kMaxShownBytes)) + " on " +
                      Who(hello.member))};
}

std::optional<GroupRefused> CheckLayout(const GroupHello& leader,
                                        const GroupHello& hello) {
  const GroupMember& m = hello.member;
  const uint64_t end = uint64_t{m.rank_offset} + m.local_ranks;
  if (m.local_ranks == 0 || end > kMaxGroupRanks) {
    return GroupRefused{
        "--local_ranks",
        "--local_ranks=" + std::to_string(m.local_ranks) +
            " at --rank_offset=" + std::to_string(m.rank_offset) +
            " is no range of ranks"};
  }
  if (hello.ep_size != leader.ep_size) {
    return Differs(leader, hello, "--ep_size", std::to_string(leader.ep_size),
                   std::to_string(hello.ep_size));
  }
  if (end > leader.ep_size) {
    return GroupRefused{
        "--rank_offset",
        "--rank_offset=" + std::to_string(m.rank_offset) + ": " + Who(m) +
            " are not all below --ep_size=" + std::to_string(leader.ep_size)};
  }
  if (Overlap(leader.member, m)) {
    return GroupRefused{"--rank_offset",
                        "--rank_offset=" + std::to_string(m.rank_offset) +
                            ": " + Who(m) + " overlap " + Who(leader.member) +
                            " of the leader"};
  }
  return std::nullopt;
}

// Nothing if `options` has no such name.
const std::string* FindValue(const std::vector<GroupOption>& options,
                             const std::string& name) {
  const auto it = std::find_if(
      options.begin(), options.end(),
      [&name](const GroupOption& option) { return option.name == name; });
  return it == options.end() ? nullptr : &it->value;
}

std::optional<GroupRefused> CheckOption(const GroupHello& leader,
                                        const GroupHello& hello,
                                        const std::string& name) {
  const std::string* there = FindValue(leader.options, name);
  const std::string* here = FindValue(hello.options, name);
  if (there && here && *there == *here) return std::nullopt;
  return Differs(leader, hello, "--" + name.substr(0, kMaxShownBytes),
                 there ? *there : "unknown", here ? *here : "unknown");
}

}  // namespace

std::string FormatRanks(const std::vector<uint32_t>& ranks) {
  std::string text;
  for (size_t first = 0; first < ranks.size();) {
    size_t last = first;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) {
      ++last;
    }
    if (!text.empty()) text += ' ';
    text += FormatRange(ranks[first], ranks[last]);
    first = last + 1;
  }
  return text.empty() ? "none" : text;
}

std::string FormatRanks(const GroupMember& member) {
  if (member.local_ranks == 0) return "none";
  return FormatRange(member.rank_offset,
                     member.rank_offset + member.local_ranks - 1);
}

std::vector<uint32_t> RanksOf(const GroupMember& member) {
  std::vector<uint32_t> ranks(member.local_ranks);
  std::iota(ranks.begin(), ranks.end(), member.rank_offset);
  return ranks;
}

bool Overlap(const GroupMember& a, const GroupMember& b) {
  return a.rank_offset < uint64_t{b.rank_offset} + b.local_ranks &&
         b.rank_offset < uint64_t{a.rank_offset} + a.local_ranks;
}

std::vector<uint32_t> FindMissingRanks(
    uint32_t ep_size, const std::vector<GroupMember>& members) {
  std::vector<bool> hosted(ep_size);
  for (const GroupMember& member : members) {
    for (const uint32_t rank : RanksOf(member)) hosted.at(rank) = true;
  }
  std::vector<uint32_t> missing;
  for (uint32_t rank = 0; rank < ep_size; ++rank) {
    if (!hosted[rank]) missing.push_back(rank);
  }
  return missing;
}

bool IsWholeGroup(uint32_t ep_size, const std::vector<GroupMember>& members) {
  uint64_t next = 0;
  for (const GroupMember& member : members) {
    if (member.rank_offset != next || member.local_ranks == 0) return false;
    next += member.local_ranks;
  }
  return next == ep_size;
}

std::optional<GroupRefused> CheckHello(const GroupHello& leader,
                                       const GroupHello& hello) {
  if (auto refused = CheckLayout(leader, hello)) return refused;
  if (hello.last_epoch > kMaxHelloEpoch) {
    return GroupRefused{"last_epoch", "last_epoch is more than any group had"};
  }
  for (const std::vector<GroupOption>* options :
       {&leader.options, &hello.options}) {
    for (const GroupOption& option : *options) {
      if (auto refused = CheckOption(leader, hello, option.name)) {
        return refused;
      }
    }
  }
  if (hello.fingerprint != leader.fingerprint) {
    return Differs(leader, hello, "fingerprint", leader.fingerprint,
                   hello.fingerprint);
  }
  return std::nullopt;
}

std::string BoundedText(std::string_view text) {
  std::string bounded(text.substr(0, kMaxGroupTextBytes));
  const auto is_unprintable = [](char c) { return c < ' ' || c > '~'; };
  std::replace_if(bounded.begin(), bounded.end(), is_unprintable, '?');
  return bounded;
}

}  // namespace baton
