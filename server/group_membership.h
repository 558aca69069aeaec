// One process's place in its expert-parallel group: epochs, and what it talks
// over in each.
#ifndef BATON_SERVER_GROUP_MEMBERSHIP_H_
#define BATON_SERVER_GROUP_MEMBERSHIP_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/mpsc_queue.h"
#include "comm/group_action.h"
#include "comm/group_channel.h"
#include "comm/group_links.h"
#include "comm/group_transport.h"
#include "comm/local_group_channel.h"

namespace baton {

struct GroupMembershipOptions {
  GroupFormationOptions formation;
  GroupTransportOptions transport;
};

// Every process is ready for this epoch's messages.
struct EpochStarted {
  GroupEpoch group = {};
};
// Whether or not it started. All waits for it have ended; Join to go on.
struct EpochEnded {
  GroupEpochEnd end = {};
};
// The leader doesn't want this process. Final.
struct GroupRefusal {
  absl::Status status;
};
using MembershipEvent = std::variant<EpochStarted, EpochEnded, GroupRefusal>;

// Owned by the thread that turns the engines; Wake is thread-safe.
class GroupMembership final {
 public:
  // Begins to listen, and joins. An error names a flag.
  static absl::StatusOr<std::unique_ptr<GroupMembership>> Start(
      const GroupMembershipOptions& options);
  ~GroupMembership();  // Leave().

  // What has happened since the last call, oldest first.
  void TakeEvents(std::vector<MembershipEvent>* events) {
    events_.Drain(events);
  }
  // Ready for a new epoch. REQUIRES: of the old one, ended, nothing is left: no
  // step on a device, no dispatch. An error is worth another try later.
  absl::Status Join();
  // The epoch's, from its start until Join.
  GroupTransport& transport() { return *transport_; }
  // Ends it everywhere, naming these ranks; EpochEnded follows.
  void EndEpoch(const GroupEpoch& group, std::vector<uint32_t> ranks,
                std::string reason);
  // Tells the other processes and closes everything.
  void Leave();

  // Until there may be an event or a message, Wake, or `timeout`.
  void Wait(absl::Duration timeout);
  void Wake() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  explicit GroupMembership(const GroupMembershipOptions& options)
      : options_(options) {}
  GroupCallbacks MakeCallbacks();
  // On the links' thread.
  void OnFormed(const GroupEpoch& group);
  void OnEvent(MembershipEvent event);
  // To wait on: the epoch's, or outside of one nobody's. One that has ended
  // would hold nobody up.
  GroupChannel* channel() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const GroupMembershipOptions options_;
  MpscQueue<MembershipEvent> events_;

  absl::Mutex mutex_;
  // Held while it is replaced, and by every other thread that uses it.
  std::unique_ptr<GroupTransport> transport_;
  // It has a channel.
  bool connected_ ABSL_GUARDED_BY(mutex_) = false;
  LocalGroupChannel outside_;

  std::unique_ptr<GroupLinks> links_;  // Last: its thread uses the rest.
};

}  // namespace baton

#endif  // BATON_SERVER_GROUP_MEMBERSHIP_H_
