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
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/time/time.h"
#include "comm/group_action.h"
#include "comm/group_message.h"
#include "comm/group_phase.h"

namespace baton {

struct GroupFormationOptions {
  // What this process says of itself. Its last_epoch, link_address and
  // transport_address are filled in.
  GroupHello self = {};
  std::string leader_address = {};

  // A connection must have said who it is by then.
  absl::Duration hello_timeout = absl::Seconds(5);
  absl::Duration connect_timeout = absl::Seconds(5);
  // From Formed to Start; who isn't ready is named and dropped.
  absl::Duration ready_timeout = absl::Seconds(10);
  // A process whose ranks another one holds is refused after that; longer than
  // it takes to notice that a host is gone.
  absl::Duration takeover_timeout = absl::Seconds(10);
  absl::Duration min_pause = absl::Milliseconds(20);
  absl::Duration max_pause = absl::Milliseconds(500);
  absl::Duration progress_interval = absl::Seconds(5);
  size_t max_strangers = 256;  // Connections that are no member's.
};

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
                std::string_view reason);
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
    kWaiting,    // To the leader: a process whose ranks another one holds.
    kMember,     // To the leader: has said Hello, and fits.
    kLeader,     // To a member: its connection to the leader.
    kEarlyLink,  // To a member: a link of an epoch it doesn't know yet.
    kDialing,    // To a member: its connection to a peer, being made.
    kLink,       // To a member: up.
  };
  struct Connection {
    Role role = Role::kStranger;
    absl::Time deadline = absl::InfiniteFuture();
    GroupHello hello = {};     // kWaiting, kMember.
    GroupLinkHello link = {};  // kEarlyLink.
    GroupMember peer = {};     // Who it is: kWaiting, kMember, kDialing, kLink.
    bool ready = false;        // kMember.
  };

  const GroupMember& self() const { return options_.self.member; }
  bool has_group() const;
  void EnterPhase(GroupPhase phase);
  void Note(std::string text);
  void Send(ConnectionId id, GroupMessage message);
  void Close(ConnectionId id);
  void Fail(ConnectionId id, std::string_view why);
  void OnLost(const Connection& lost, std::string_view why);
  std::vector<ConnectionId> Find(Role role) const;
  bool IsOfEpoch(Role role) const;
  void EndNow(std::vector<uint32_t> ranks, std::string_view reason);
  void OnEnding(ConnectionId id, const GroupEpochEnding& ending);
  void OnConnectionDeadline(ConnectionId id);
  void OnPhaseDeadline();
  void NoteProgress();

  // The leader's, in group_formation_leader.cc.
  void OnHello(ConnectionId id, const GroupHello& hello);
  void OnForeignVersion(ConnectionId id, uint8_t version);
  void Refuse(ConnectionId id, GroupRefused refused);
  std::optional<ConnectionId> FindHolder(const GroupMember& member) const;
  void AdmitWaiting();
  void MaybeForm();
  void OnReady(ConnectionId id, const GroupReady& ready);
  void MaybeStart();
  void OnTakeoverDeadline(ConnectionId id);
  void DropLateMembers();
  std::vector<GroupMember> Members() const;

  // A member's, in group_formation_member.cc.
  void Pause(std::string_view why);
  void Dial();
  void OnRefused(ConnectionId id, const GroupRefused& refused);
  void OnFormed(ConnectionId id, const GroupFormed& formed);
  void SortEarlyLinks();
  void OnLinkHello(ConnectionId id, const GroupLinkHello& link);
  void AcceptLink(ConnectionId id, const GroupLinkHello& link);
  void MaybeReady();
  void OnStart(ConnectionId id, const GroupStart& start);
  void GiveUpOnStart();

  GroupFormationOptions options_;
  GroupPhase phase_ = GroupPhase::kOutside;
  absl::Time now_ = absl::UnixEpoch();
  absl::Time phase_since_ = absl::UnixEpoch();
  absl::Time phase_deadline_ = absl::InfiniteFuture();
  absl::Time next_progress_ = absl::InfiniteFuture();
  uint32_t failures_ = 0;  // Tries since the last epoch that lasted.
  std::string last_failure_;
  GroupEpoch group_;  // If has_group().
  ConnectionId last_connection_;
  std::map<ConnectionId, Connection> connections_;
  std::vector<GroupAction> actions_;
};

}  // namespace baton

#endif  // BATON_COMM_GROUP_FORMATION_H_
