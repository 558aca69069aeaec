// The thread of GroupLinks: poll(2) over non-blocking sockets.
#ifndef BATON_COMM_GROUP_LINKS_LOOP_H_
#define BATON_COMM_GROUP_LINKS_LOOP_H_

#include <poll.h>

#include <cstdint>
#include <list>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/mpsc_queue.h"
#include "comm/group_links.h"
#include "comm/stream_socket.h"

namespace baton {

struct GroupJoinCommand {
  std::string transport_address;
};
struct GroupEndCommand {
  uint64_t epoch = 0;
  std::vector<uint32_t> ranks;
  std::string reason;
};
struct GroupStopCommand {};
using GroupCommand =
    std::variant<GroupJoinCommand, GroupEndCommand, GroupStopCommand>;

// Owned by GroupLinks. Post and port are thread-safe; all else is its thread's.
class GroupLinksLoop {
 public:
  // `listener` is the leader's; none for others.
  GroupLinksLoop(GroupLinksOptions options, GroupCallbacks callbacks,
                 FileDescriptor listener);

  void Run();  // Until GroupStopCommand.
  void Post(GroupCommand command);
  uint16_t port() const { return port_; }

 private:
  struct Socket {
    FileDescriptor fd;
    std::string peer = {};  // Of one that we dialled.
    bool connecting = false;
    GroupFrameReader in{kMaxGroupFrameBytes};
    std::string out = {};   // Not sent yet.
    bool was_used = false;  // Something was to be sent.
    // Closed by us, but what was sent may still be on its way: a close with
    // unread bytes would take it back.
    absl::Time linger_until = absl::InfiniteFuture();
  };
  // Places among Polls(); after the sockets, the lingering ones.
  static constexpr size_t kWake = 0;
  static constexpr size_t kListener = 1;
  static constexpr size_t kFirstSocket = 2;

  void Turn();
  std::vector<pollfd> Polls() const;
  absl::Time NextDeadline() const;
  void WaitForAny(std::vector<pollfd>* polls, absl::Time until) const;
  void RunCommands();
  void Accept();
  void OnReady(ConnectionId id, int events);
  void OnConnected(ConnectionId id);
  absl::Status Listen(const std::string& host);
  void Read(ConnectionId id);
  bool Handle(ConnectionId id);
  void Write(Socket* socket);
  void Lose(ConnectionId id, std::string_view why);
  void Linger();
  void Leave();

  // Does what the formation wants.
  void Act();
  void Do(const GroupConnect& action);
  void Do(const GroupSend& action);
  void Do(const GroupClose& action);
  void Do(const GroupHasFormed& action);
  void Do(const GroupHasStarted& action);
  void Do(const GroupHasEnded& action);
  void Do(const GroupWasRefused& action);
  void Do(const GroupNote& action);

  const GroupLinksOptions options_;
  const GroupCallbacks callbacks_;
  const MonotonicClock clock_;
  const FileDescriptor wake_;  // An eventfd.
  const uint16_t port_;
  MpscQueue<GroupCommand> commands_;

  GroupFormation formation_;
  FileDescriptor listener_;
  std::string listening_host_;  // A member's.
  absl::Time accept_again_ = absl::InfinitePast();
  uint32_t attempts_ = 0;
  bool stopping_ = false;
  std::map<ConnectionId, Socket> sockets_;
  std::list<Socket> lingering_;
};

}  // namespace baton

#endif  // BATON_COMM_GROUP_LINKS_LOOP_H_
