// Which ranks this process hosts and where its leader is: from flags, or from
// the environment of Kubernetes' LeaderWorkerSet.
#ifndef BATON_COMM_GROUP_LAYOUT_H_
#define BATON_COMM_GROUP_LAYOUT_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"

namespace baton {

// Where the leader listens if nobody says.
inline constexpr uint16_t kDefaultGroupPort = 7480;

// What is absent was not given.
struct GroupFlags {
  std::optional<uint32_t> ep_size = {};
  // 0: all of ep_size, or where there is LWS_GROUP_SIZE this process's share.
  uint32_t local_ranks = 1;
  std::optional<uint32_t> rank_offset = {};
  std::string leader = {};  // host:port, :port or empty.
};

// The variables' text; absent where there are none.
struct LeaderWorkerSet {
  std::optional<std::string> leader_address = {};  // LWS_LEADER_ADDRESS
  std::optional<std::string> group_size = {};      // LWS_GROUP_SIZE
  std::optional<std::string> worker_index = {};    // LWS_WORKER_INDEX
};

struct GroupLayout {
  uint32_t ep_size = 1;
  uint32_t local_ranks = 1;
  uint32_t rank_offset = 0;
  std::string leader =
      {};  // host:port; empty where one process hosts all ranks.
};

// A flag that is absent follows from the variables: ep_size = LWS_GROUP_SIZE *
// local_ranks, rank_offset = LWS_WORKER_INDEX * local_ranks, leader =
// LWS_LEADER_ADDRESS with the flag's port or kDefaultGroupPort; without them:
// ep_size = local_ranks, rank_offset = 0. FieldError names the flag, also for
// one that contradicts the variables.
absl::StatusOr<GroupLayout> ResolveGroupLayout(const GroupFlags& flags,
                                               const LeaderWorkerSet& lws);

}  // namespace baton

#endif  // BATON_COMM_GROUP_LAYOUT_H_
