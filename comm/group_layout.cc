#include "comm/group_layout.h"

#include <string_view>

#include "absl/strings/numbers.h"
#include "base/field_error.h"
#include "base/status_macros.h"
#include "comm/group_message.h"
#include "comm/host_port.h"

namespace baton {
namespace {

std::string Text(uint64_t number) { return std::to_string(number); }

absl::StatusOr<uint32_t> ParseVariable(std::string_view name,
                                       const std::string& text, uint32_t min) {
  uint32_t value = 0;
  if (text.find_first_not_of("0123456789") != std::string::npos ||
      !absl::SimpleAtoi(text, &value) || value < min ||
      value > kMaxGroupRanks) {
    return FieldError(name, "must be a number of " + Text(min) + " .. " +
                                Text(kMaxGroupRanks) + ", not '" + text + "'");
  }
  return value;
}

// The flag's value, else what the variable says: the processes before this one,
// or of the group, each with `local_ranks`. Both must agree.
absl::StatusOr<uint32_t> Derive(std::string_view flag,
                                const std::optional<uint32_t>& given,
                                uint32_t local_ranks, std::string_view variable,
                                uint32_t processes) {
  const uint64_t derived = uint64_t{processes} * local_ranks;
  if (given.has_value() && *given != derived) {
    return FieldError(flag, Text(*given) + " contradicts " +
                                std::string(variable) + "=" + Text(processes) +
                                " with --local_ranks=" + Text(local_ranks));
  }
  if (derived > kMaxGroupRanks) {
    return FieldError("local_ranks", Text(local_ranks) + " times " +
                                         std::string(variable) + "=" +
                                         Text(processes) + " is more than " +
                                         Text(kMaxGroupRanks) + " ranks");
  }
  return static_cast<uint32_t>(derived);
}

absl::Status ApplyVariables(const GroupFlags& flags, const LeaderWorkerSet& lws,
                            GroupLayout* layout) {
  if (lws.group_size.has_value()) {
    ASSIGN_OR_RETURN(const uint32_t size,
                     ParseVariable("LWS_GROUP_SIZE", *lws.group_size, 1));
    ASSIGN_OR_RETURN(layout->ep_size,
                     Derive("ep_size", flags.ep_size, flags.local_ranks,
                            "LWS_GROUP_SIZE", size));
  }
  if (lws.worker_index.has_value()) {
    ASSIGN_OR_RETURN(const uint32_t index,
                     ParseVariable("LWS_WORKER_INDEX", *lws.worker_index, 0));
    ASSIGN_OR_RETURN(layout->rank_offset,
                     Derive("rank_offset", flags.rank_offset, flags.local_ranks,
                            "LWS_WORKER_INDEX", index));
  }
  if (lws.group_size.has_value() && !lws.worker_index.has_value() &&
      !flags.rank_offset.has_value() && layout->ep_size > flags.local_ranks) {
    return FieldError("LWS_WORKER_INDEX",
                      "is missing beside LWS_GROUP_SIZE: which process is it?");
  }
  return absl::OkStatus();
}

// The ranks of each process where nobody says.
absl::StatusOr<uint32_t> ShareOf(const std::optional<uint32_t>& ep_size,
                                 const LeaderWorkerSet& lws) {
  uint32_t num_processes = 1;
  if (lws.group_size.has_value()) {
    ASSIGN_OR_RETURN(num_processes,
                     ParseVariable("LWS_GROUP_SIZE", *lws.group_size, 1));
  }
  const uint32_t num_ranks = ep_size.value_or(num_processes);
  if (num_ranks % num_processes == 0) return num_ranks / num_processes;
  return FieldError("ep_size", Text(num_ranks) +
                                   " does not divide by LWS_GROUP_SIZE=" +
                                   Text(num_processes));
}

absl::Status CheckRanks(const GroupLayout& l) {
  if (l.local_ranks == 0 || l.local_ranks > kMaxGroupRanks) {
    return FieldError("local_ranks", "must be 1 .. " + Text(kMaxGroupRanks));
  }
  if (l.ep_size == 0 || l.ep_size > kMaxGroupRanks) {
    return FieldError("ep_size", "must be 1 .. " + Text(kMaxGroupRanks));
  }
  if (l.ep_size % l.local_ranks != 0) {
    return FieldError("ep_size", Text(l.ep_size) +
                                     " is no multiple of --local_ranks, " +
                                     Text(l.local_ranks));
  }
  if (l.rank_offset % l.local_ranks != 0) {
    return FieldError("rank_offset", Text(l.rank_offset) +
                                         " is no multiple of --local_ranks, " +
                                         Text(l.local_ranks));
  }
  if (l.rank_offset >= l.ep_size) {
    return FieldError(
        "rank_offset",
        Text(l.rank_offset) + " is not below --ep_size, " + Text(l.ep_size));
  }
  return absl::OkStatus();
}

// `flag` is host:port, :port or empty.
absl::StatusOr<std::string> ResolveLeader(const std::string& flag,
                                          const LeaderWorkerSet& lws) {
  const std::string host = lws.leader_address.value_or("");
  const bool port_only = flag.empty() || flag.front() == ':';
  if (port_only && host.empty()) {
    return FieldError("leader", flag.empty()
                                    ? "is needed where other processes host "
                                      "ranks of the group: host:port"
                                    : "has no host, and there is no "
                                      "LWS_LEADER_ADDRESS");
  }
  std::string leader = flag;
  if (port_only) {
    const std::string port =
        flag.empty() ? Text(kDefaultGroupPort) : flag.substr(1);
    const bool bare_v6 =
        host.front() != '[' && host.find_first_of(':') != std::string::npos;
    leader = (bare_v6 ? "[" + host + "]" : host) + ":" + port;
  }
  const std::optional<HostPort> parsed = ParseHostPort(leader);
  if (!parsed.has_value() || parsed->port == 0) {
    return FieldError("leader", "'" + leader +
                                    "' must be host:port with a port of "
                                    "1 .. 65535");
  }
  return leader;
}

}  // namespace

absl::StatusOr<GroupLayout> ResolveGroupLayout(const GroupFlags& given,
                                               const LeaderWorkerSet& lws) {
  GroupFlags flags = given;
  if (flags.local_ranks == 0) {
    ASSIGN_OR_RETURN(flags.local_ranks, ShareOf(given.ep_size, lws));
  }
  GroupLayout layout = {.ep_size = flags.ep_size.value_or(flags.local_ranks),
                        .local_ranks = flags.local_ranks,
                        .rank_offset = flags.rank_offset.value_or(0)};
  RETURN_IF_ERROR(ApplyVariables(flags, lws, &layout));
  RETURN_IF_ERROR(CheckRanks(layout));
  if (layout.ep_size == layout.local_ranks) return layout;
  ASSIGN_OR_RETURN(layout.leader, ResolveLeader(flags.leader, lws));
  return layout;
}

}  // namespace baton
