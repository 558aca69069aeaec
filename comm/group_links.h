// The sockets of one expert-parallel group: a thread that forms the group,
// keeps one connection to each of its other processes, says when an epoch
// starts and ends, and forms it again. The decisions are group_formation.h's.
//
//   auto links = GroupLinks::Start(options, callbacks);
//   (*links)->Join(my_transport_address);
//   ... formed, then started, then (a death, or EndEpoch) ended ...
//   (*links)->Join(my_new_transport_address);
#ifndef BATON_COMM_GROUP_LINKS_H_
#define BATON_COMM_GROUP_LINKS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "comm/group_formation.h"

namespace baton {

class GroupLinksLoop;

struct GroupLinksOptions {
  // Its leader_address is --leader. An incarnation is drawn, and a host_id is
  // read, if there is none.
  GroupFormationOptions formation = {};
  // A host that is silent for so long is gone.
  absl::Duration dead_host_timeout = absl::Seconds(5);
};

// Run on the thread of the links, which they must not hold up for long: it also
// tells the peers that this process lives. They may call Join and EndEpoch.
// None runs after Stop.
struct GroupCallbacks {
  // Before any process starts: when it returns, this one is ready for messages
  // of that epoch.
  std::function<void(const GroupEpoch&)> formed;
  // Every process is ready. Peers may have started a moment before.
  std::function<void(const GroupEpoch&)> started;
  // Each `formed` has one, whether or not it started. Join to go on.
  std::function<void(const GroupEpochEnd&)> ended;
  // The leader doesn't want this process; FAILED_PRECONDITION names the field
  // and both values. Final.
  std::function<void(const absl::Status&)> refused;
};

// Thread-safe.
class GroupLinks {
 public:
  // Begins to listen. INVALID_ARGUMENT or UNAVAILABLE names the flag: --leader
  // cannot be bound.
  static absl::StatusOr<std::unique_ptr<GroupLinks>> Start(
      GroupLinksOptions options, GroupCallbacks callbacks);
  ~GroupLinks();  // Stop().

  // This process is ready for a new epoch, and holds nothing of the old one.
  // Once after Start, and once after each `ended`.
  void Join(std::string transport_address);
  // Ends the epoch everywhere, if it is still `epoch`: all processes name
  // these ranks (those that the watchdog suspects).
  void EndEpoch(uint64_t epoch, std::vector<uint32_t> ranks,
                std::string reason);
  // Tells the peers and closes everything. Not from a callback.
  void Stop();

  // Where a leader listens, also if --leader has port 0; 0 for others.
  uint16_t port() const;

 private:
  explicit GroupLinks(std::unique_ptr<GroupLinksLoop> loop);

  const std::unique_ptr<GroupLinksLoop> loop_;
  std::thread thread_;  // Last: it uses the loop.
};

}  // namespace baton

#endif  // BATON_COMM_GROUP_LINKS_H_
