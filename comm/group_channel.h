// Messages between the processes of a group in one epoch: their votes, and what
// else they have to agree on.
#ifndef BATON_COMM_GROUP_CHANNEL_H_
#define BATON_COMM_GROUP_CHANNEL_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace baton {

struct ChannelMessage {
  uint32_t from = 0;  // A process of the group.
  std::string bytes = {};
};

// Owned by one thread at a time, but for Wake, End and status, which are
// thread-safe. Between two processes messages arrive in order, each once, while
// both live; nothing of another epoch arrives.
class GroupChannel {
 public:
  static constexpr size_t kMaxMessageBytes = 256 << 10;

  virtual ~GroupChannel() = default;

  // Never blocks: what the peer has no room for yet waits here, and goes out in
  // later calls. REQUIRES: another process; at most kMaxMessageBytes.
  virtual void Send(uint32_t process, std::string_view message) = 0;
  // Everything that is here, oldest first of each sender, in place of what
  // `received` holds.
  virtual void Receive(std::vector<ChannelMessage>* received) = 0;
  // Until there may be a message, Wake, End or `timeout`.
  virtual void Wait(absl::Duration timeout) = 0;
  // Ends the current or the next Wait.
  virtual void Wake() = 0;

  // From now on nothing is sent or received here, and Wait returns at once.
  virtual void End() = 0;
  // Not OK: ended, or a peer is lost.
  virtual absl::Status status() const = 0;
};

}  // namespace baton

#endif  // BATON_COMM_GROUP_CHANNEL_H_
