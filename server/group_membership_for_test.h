// What the processes of a test's group are told, all of them in one process.
#ifndef BATON_SERVER_GROUP_MEMBERSHIP_FOR_TEST_H_
#define BATON_SERVER_GROUP_MEMBERSHIP_FOR_TEST_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "base/logging.h"
#include "comm/stream_socket.h"
#include "comm/ucx_transport.h"
#include "server/group_membership.h"

namespace baton {

inline constexpr uint32_t kLocalRanks = 2;
inline constexpr uint32_t kSlotsPerRank = 2;
inline constexpr uint32_t kExperts = 4;
inline constexpr int kHidden = 4;

// Of this host, where nobody listens.
inline std::string FreeAddress() {
  const auto listener = ListenOn({.host = "127.0.0.1", .port = 0});
  CHECK_OK(listener.status());
  return FormatHostPort(LocalAddress(*listener));
}

struct GroupProcessOptions {
  uint32_t process = 0;
  uint32_t num_processes = 2;
  std::string leader = {};
  UcxMode mode = UcxMode::kShm;
  // Of votes, and of the waits of devices.
  absl::Duration watchdog = absl::Minutes(1);
  absl::Duration deadline = absl::Minutes(1);
  std::string option = "same";  // On all processes.

  uint32_t num_ranks() const { return num_processes * kLocalRanks; }
};

inline GroupMembershipOptions MembershipOptions(
    const GroupProcessOptions& options) {
  const auto num_ranks = static_cast<int>(options.num_ranks());
  return {.formation = {.self = {.options = {{"option", options.option}},
                                 .ep_size = options.num_ranks(),
                                 .member = {.rank_offset =
                                                options.process * kLocalRanks,
                                            .local_ranks = kLocalRanks}},
                        .leader_address = options.leader},
          .transport = {.shape = {.experts = {.num_experts = kExperts,
                                              .top_k = 1,
                                              .hidden_size = kHidden,
                                              .max_tokens = 1},
                                  .num_ranks = num_ranks,
                                  .slots_per_rank = kSlotsPerRank},
                        .local_ranks = kLocalRanks,
                        .process = options.process,
                        .mode = options.mode,
                        .network_devices = "lo",
                        .deadline = options.deadline}};
}

inline std::unique_ptr<GroupMembership> StartMembership(
    const GroupProcessOptions& options) {
  auto membership = GroupMembership::Start(MembershipOptions(options));
  CHECK_OK(membership.status());
  return *std::move(membership);
}

}  // namespace baton

#endif  // BATON_SERVER_GROUP_MEMBERSHIP_FOR_TEST_H_
