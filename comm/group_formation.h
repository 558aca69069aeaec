// How the processes of one expert-parallel group find each other, agree, notice
// a death and form again: the decisions alone, without sockets or a clock.
//
//   member                      leader (rank_offset 0)
//   Connect, Hello -----------> checks; refuses, or waits for all ranks
//          <------------------- Formed: epoch = newest that anyone saw + 1
//   links to all others
//   Ready  -------------------> waits for all
//          <------------------- Start
// The connections to the leader are the links with it; of two members the one
// with the higher rank_offset connects to the other. Whoever sees a link close
// says EpochEnding on all its links and closes them, so everyone hears of it.
#ifndef BATON_COMM_GROUP_FORMATION_H_
#define BATON_COMM_GROUP_FORMATION_H_

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/time/time.h"
#include "base/strong_int.h"
#include "comm/group_message.h"
#include "comm/group_phase.h"

namespace baton {

BATON_DEFINE_STRONG_INT(ConnectionId, uint64_t);

struct GroupFormationOptions {
  // What this process says of itself. Its last_epoch, link_address and
  // transport_address are filled in.
  GroupHello self;
  std::string leader_address;

  // A connection must have said who it is by then.
  absl::Duration hello_timeout = absl::Seconds(5);
  absl::Duration connect_timeout = absl::Seconds(5);
  // From Formed to Start; who isn't ready is named and dropped.
  absl::Duration ready_timeout = absl::Seconds(10);
  // A process whose ranks another one holds is refused after that; longer than
  // it takes to notice that a host is gone.
  absl::Duration takeover_timeout = absl::Seconds(10);
  absl::Duration min_pause = absl::Milliseconds(20);
  absl::Duration max_pause = absl::Seconds(1);
  absl::Duration progress_interval = absl::Seconds(5);
  size_t max_strangers = 256;  // Connections that are no member's.
};

// The group of one epoch; the same on every process.
struct GroupEpoch {
  uint64_t epoch = 0;
  std::vector<GroupMember> members;  // By rank_offset; cover all ranks.
};

struct GroupEpochEnd {
  uint64_t epoch = 0;
  bool started = false;
  std::vector<uint32_t> ranks;  // Lost, or suspected; ascending.
  std::string reason;
};

// What the shell must do, in this order. For a connection that it was told to
// close it reports nothing more; what was sent before goes out first.
struct GroupConnect {
  ConnectionId connection;
  std::string address;
};
struct GroupSend {
  ConnectionId connection;
  GroupMessage message;
};
struct GroupClose {
  ConnectionId connection;
};
struct GroupHasFormed {  // Ready is said after this has been acted upon.
  GroupEpoch group;
};
struct GroupHasStarted {
  GroupEpoch group;
};
struct GroupHasEnded {  // Each GroupHasFormed has one. Join to go on.
  GroupEpochEnd end;
};
struct GroupWasRefused {  // Final.
  GroupRefused refused;
};
struct GroupNote {  // For the log.
  std::string text;
};
using GroupAction =
    std::variant<GroupConnect, GroupSend, GroupClose, GroupHasFormed,
                 GroupHasStarted, GroupHasEnded, GroupWasRefused, GroupNote>;

// Thread-compatible. Events in; TakeActions() after each. Time is what Tick
// said last.
class GroupFormation {
 public:
  explicit GroupFormation(GroupFormationOptions options);

  // The process is ready for a new epoch and holds nothing of the old one.
  // REQUIRES: kOutside.
  void Join(std::string transport_address);
  // Something connected to us.
  ConnectionId Accepted();
  // A GroupConnect succeeded; peers can reach us at `link_address`.
  void Connected(ConnectionId connection, std::string link_address);
  // A GroupConnect failed, or the other side closed or said nonsense.
  void Closed(ConnectionId connection, std::string_view why);
  void Received(ConnectionId connection, const GroupMessage& message);
  // This process ends the epoch, if it is still `epoch`.
  void EndEpoch(uint64_t epoch, std::vector<uint32_t> ranks,
                std::string reason);
  // It is `now`, which never goes backwards.
  void Tick(absl::Time now);

  std::vector<GroupAction> TakeActions();
  // When Tick has something to do.
  absl::Time next_deadline() const;
  GroupPhase phase() const { return phase_; }
  // The newest seen, formed or not.
  uint64_t last_epoch() const { return options_.self.last_epoch; }
  bool is_leader() const { return self().rank_offset == 0; }
  // Dies if something contradicts itself.
  void CheckInvariants() const;

 private:
  enum class Role {
    kStranger,   // Has said nothing yet.
    kWaiting,    // To the leader: a member whose ranks another one holds.
    kMember,     // To the leader: has said Hello, and fits.
    kLeader,     // To a member: its connection to the leader.
    kEarlyLink,  // To a member: a link for an epoch it doesn't know yet.
    kDialing,    // To a member: its connection to a peer, being made.
    kLink,       // To a member: up.
  };
  struct Connection {
    Role role = Role::kStranger;
    absl::Time deadline = absl::InfiniteFuture();
    GroupHello hello;     // kWaiting, kMember.
    GroupLinkHello link;  // kEarlyLink.
    GroupMember peer;     // kDialing, kLink.
    bool ready = false;   // kMember.
  };
  using Connections = std::map<ConnectionId, Connection>;

  const GroupMember& self() const { return options_.self.member; }
  void EnterPhase(GroupPhase phase);
  void Note(std::string text);
  void Send(ConnectionId connection, GroupMessage message);
  void Close(ConnectionId connection);
  size_t CountStrangers() const;
  std::vector<uint32_t> RanksOf(const Connection& connection) const;
  bool IsOfEpoch(Role role) const;
  void EndNow(std::vector<uint32_t> ranks, std::string reason);
  void Progress();
  void OnEnding(const GroupEpochEnding& message);
  void OnConnectionDeadline(ConnectionId connection);
  void OnPhaseDeadline();
  void OnForeignVersion(ConnectionId connection, uint8_t version);

  // The leader's.
  void OnHello(ConnectionId connection, const GroupHello& hello);
  void Refuse(ConnectionId connection, GroupRefused refused);
  const Connection* FindHolder(const GroupHello& hello) const;
  void AdmitWaiting();
  void MaybeForm();
  void OnReady(ConnectionId connection);
  void MaybeStart();
  void OnTakeoverDeadline(ConnectionId connection);
  std::vector<uint32_t> MissingRanks() const;

  // A member's.
  void Pause();
  void Dial();
  void OnFormed(const GroupFormed& formed);
  void OnLinkHello(ConnectionId connection, const GroupLinkHello& link);
  bool AcceptLink(ConnectionId connection);
  void MaybeReady();
  void OnStart(const GroupStart& start);

  GroupFormationOptions options_;
  GroupPhase phase_ = GroupPhase::kOutside;
  absl::Time now_ = absl::UnixEpoch();
  absl::Time phase_deadline_ = absl::InfiniteFuture();
  absl::Time next_progress_ = absl::InfiniteFuture();
  uint32_t failures_ = 0;  // Tries since the last epoch that started.
  GroupEpoch group_;       // kLinking, kReady, kRunning.
  uint64_t next_connection_ = 0;
  Connections connections_;
  std::vector<GroupAction> actions_;
};

}  // namespace baton

#endif  // BATON_COMM_GROUP_FORMATION_H_
