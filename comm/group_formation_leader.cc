// The leader's half of GroupFormation.
#include <algorithm>
#include <utility>

#include "base/logging.h"
#include "comm/group_agreement.h"
#include "comm/group_formation.h"

namespace baton {

void GroupFormation::OnHello(ConnectionId id, const GroupHello& hello) {
  Connection& connection = connections_.at(id);
  if (!is_leader() || connection.role != Role::kStranger) {
    return Fail(id, "said Hello where none was due");
  }
  if (auto refused = CheckHello(options_.self, hello)) {
    return Refuse(id, *std::move(refused));
  }
  connection.role = Role::kWaiting;
  connection.deadline = now_ + options_.takeover_timeout;
  connection.hello = hello;
  connection.peer = hello.member;
  AdmitWaiting();
}

void GroupFormation::OnForeignVersion(ConnectionId id, uint8_t version) {
  if (!is_leader() || connections_.at(id).role != Role::kStranger) {
    return Fail(id, "speaks another version");
  }
  Refuse(id, {.field = "protocol version",
              .reason = "protocol version is " +
                        std::to_string(kGroupProtocolVersion) +
                        " on the leader and " + std::to_string(version) +
                        " on this process"});
}

void GroupFormation::Refuse(ConnectionId id, GroupRefused refused) {
  Note("refused a process: " + refused.reason);
  Send(id, std::move(refused));
  Close(id);
}

std::optional<ConnectionId> GroupFormation::FindHolder(
    const GroupMember& member) const {
  for (const ConnectionId id : Find(Role::kMember)) {
    if (Overlap(connections_.at(id).peer, member)) return id;
  }
  return std::nullopt;
}

// First come, first served. In an epoch all ranks are held.
void GroupFormation::AdmitWaiting() {
  for (const ConnectionId id : Find(Role::kWaiting)) {
    Connection& connection = connections_.at(id);
    if (FindHolder(connection.peer).has_value()) continue;
    connection.role = Role::kMember;
    connection.deadline = absl::InfiniteFuture();
  }
  MaybeForm();
}

std::vector<GroupMember> GroupFormation::Members() const {
  std::vector<GroupMember> members = {self()};
  for (const ConnectionId id : Find(Role::kMember)) {
    members.push_back(connections_.at(id).peer);
  }
  std::sort(members.begin(), members.end(),
            [](const GroupMember& a, const GroupMember& b) {
              return a.rank_offset < b.rank_offset;
            });
  return members;
}

void GroupFormation::MaybeForm() {
  if (phase_ != GroupPhase::kGathering) return;
  std::vector<GroupMember> members = Members();
  if (!IsWholeGroup(options_.self.ep_size, members)) return;
  uint64_t& epoch = options_.self.last_epoch;
  for (const ConnectionId id : Find(Role::kMember)) {
    epoch = std::max(epoch, connections_.at(id).hello.last_epoch);
  }
  ++epoch;
  group_ = {.epoch = epoch, .members = std::move(members)};
  EnterPhase(GroupPhase::kLinking);
  phase_deadline_ = now_ + options_.ready_timeout;
  actions_.push_back(GroupHasFormed{group_});
  for (const ConnectionId id : Find(Role::kMember)) {
    Send(id, GroupFormed{.epoch = epoch, .members = group_.members});
  }
  MaybeStart();
}

void GroupFormation::OnReady(ConnectionId id, const GroupReady& ready) {
  Connection& connection = connections_.at(id);
  if (connection.role != Role::kMember || phase_ != GroupPhase::kLinking ||
      ready.epoch != group_.epoch) {
    return Fail(id, "said Ready where none was due");
  }
  connection.ready = true;
  MaybeStart();
}

void GroupFormation::MaybeStart() {
  const std::vector<ConnectionId> members = Find(Role::kMember);
  for (const ConnectionId id : members) {
    if (!connections_.at(id).ready) return;
  }
  EnterPhase(GroupPhase::kRunning);
  for (const ConnectionId id : members) {
    Send(id, GroupStart{.epoch = group_.epoch});
  }
  Note("started epoch " + std::to_string(group_.epoch) + " ranks " +
       std::to_string(options_.self.ep_size) + " processes " +
       std::to_string(group_.members.size()));
  actions_.push_back(GroupHasStarted{group_});
}

// The one who came back itself is let in; another one is refused.
void GroupFormation::OnTakeoverDeadline(ConnectionId id) {
  const GroupMember newcomer = connections_.at(id).peer;
  const std::optional<ConnectionId> holder = FindHolder(newcomer);
  CHECK(holder.has_value());
  const GroupMember old = connections_.at(*holder).peer;
  if (old.incarnation == newcomer.incarnation) {
    return Fail(*holder, "it came back by another connection");
  }
  Refuse(id, {.field = "--rank_offset",
              .reason = BoundedText(
                  "--rank_offset=" + std::to_string(newcomer.rank_offset) +
                  ": another process, at " + old.link_address.substr(0, 256) +
                  ", hosts ranks " + FormatRanks(old))});
}

void GroupFormation::DropLateMembers() {
  std::vector<uint32_t> late;
  for (const ConnectionId id : Find(Role::kMember)) {
    const Connection& connection = connections_.at(id);
    if (connection.ready) continue;
    const std::vector<uint32_t> ranks = RanksOf(connection.peer);
    late.insert(late.end(), ranks.begin(), ranks.end());
  }
  std::sort(late.begin(), late.end());
  EndNow(late, "ranks " + FormatRanks(late) + " were not ready within " +
                   absl::FormatDuration(options_.ready_timeout));
}

}  // namespace baton
