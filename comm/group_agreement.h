// What the leader of an expert-parallel group asks of each member, as pure
// functions, and how ranks are written.
#ifndef BATON_COMM_GROUP_AGREEMENT_H_
#define BATON_COMM_GROUP_AGREEMENT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/group_message.h"

namespace baton {

// "0..3 5 8..15", of ascending ranks; "none" of none.
std::string FormatRanks(const std::vector<uint32_t>& ranks);
std::string FormatRanks(const GroupMember& member);
std::vector<uint32_t> RanksOf(const GroupMember& member);

bool Overlap(const GroupMember& a, const GroupMember& b);
// The ranks below `ep_size` that none of `members` hosts.
std::vector<uint32_t> FindMissingRanks(uint32_t ep_size,
                                       const std::vector<GroupMember>& members);
// Ascending, without gap or overlap, all ranks below `ep_size`.
bool IsWholeGroup(uint32_t ep_size, const std::vector<GroupMember>& members);

// A hello with a later epoch is refused: the next ones have to fit a message.
inline constexpr uint64_t kMaxHelloEpoch = uint64_t{1} << 48;

// Whether `hello` fits the leader's own: layout, options, fingerprint. If not,
// the first field that differs, with both values.
std::optional<GroupRefused> CheckHello(const GroupHello& leader,
                                       const GroupHello& hello);

// At most kMaxGroupTextBytes of it, '?' for what is not printable.
std::string BoundedText(std::string_view text);

}  // namespace baton

#endif  // BATON_COMM_GROUP_AGREEMENT_H_
