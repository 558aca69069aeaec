// What the formation of a group tells the sockets and the process to do.
#ifndef BATON_COMM_GROUP_ACTION_H_
#define BATON_COMM_GROUP_ACTION_H_

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "base/strong_int.h"
#include "comm/group_message.h"

namespace baton {

BATON_DEFINE_STRONG_INT(ConnectionId, uint64_t);

// The group of one epoch; the same on every process.
struct GroupEpoch {
  uint64_t epoch = 0;
  std::vector<GroupMember> members = {};  // By rank_offset; cover all ranks.
};

struct GroupEpochEnd {
  uint64_t epoch = 0;
  bool started = false;
  std::vector<uint32_t> ranks = {};  // Lost, or suspected; ascending.
  std::string reason = {};
};

// What the shell must do, in this order. For a connection that it was told to
// close it reports nothing more; what was sent before goes out first.
struct GroupConnect {
  ConnectionId connection = {};
  std::string address = {};
};
struct GroupSend {
  ConnectionId connection = {};
  GroupMessage message = {};
};
struct GroupClose {
  ConnectionId connection = {};
};
struct GroupHasFormed {  // Ready is said after this has been acted upon.
  GroupEpoch group = {};
};
struct GroupHasStarted {
  GroupEpoch group = {};
};
struct GroupHasEnded {  // Each GroupHasFormed has one. Join to go on.
  GroupEpochEnd end = {};
};
struct GroupWasRefused {  // Final.
  GroupRefused refused = {};
};
struct GroupNote {  // For the log.
  std::string text = {};
};
using GroupAction =
    std::variant<GroupConnect, GroupSend, GroupClose, GroupHasFormed,
                 GroupHasStarted, GroupHasEnded, GroupWasRefused, GroupNote>;

}  // namespace baton

#endif  // BATON_COMM_GROUP_ACTION_H_
