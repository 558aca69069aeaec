// A member's half of GroupFormation.
#include <algorithm>
#include <utility>

#include "base/logging.h"
#include "comm/group_agreement.h"
#include "comm/group_formation.h"

namespace baton {

void GroupFormation::Pause(std::string_view why) {
  constexpr uint32_t kMaxDoublings = 20;
  if (!why.empty()) last_failure_ = why;
  EnterPhase(GroupPhase::kPausing);
  const auto factor = int64_t{1} << std::min(failures_, kMaxDoublings);
  phase_deadline_ =
      now_ + std::min(options_.max_pause, options_.min_pause * factor);
  ++failures_;
}

void GroupFormation::Dial() {
  EnterPhase(GroupPhase::kConnecting);
  const ConnectionId id = ++last_connection_;
  connections_[id] = {.role = Role::kLeader,
                      .deadline = now_ + options_.connect_timeout};
  actions_.push_back(GroupConnect{id, options_.leader_address});
}

void GroupFormation::OnRefused(ConnectionId id, const GroupRefused& refused) {
  if (connections_.at(id).role != Role::kLeader ||
      phase_ != GroupPhase::kGathering) {
    return Fail(id, "refused where nothing was asked");
  }
  while (!connections_.empty()) Close(connections_.begin()->first);
  EnterPhase(GroupPhase::kRefused);
  next_progress_ = absl::InfiniteFuture();
  actions_.push_back(GroupWasRefused{refused});
}

void GroupFormation::OnFormed(ConnectionId id, const GroupFormed& formed) {
  const auto& members = formed.members;
  const bool fits =
      connections_.at(id).role == Role::kLeader &&
      phase_ == GroupPhase::kGathering && formed.epoch > last_epoch() &&
      IsWholeGroup(options_.self.ep_size, members) &&
      std::find(members.begin(), members.end(), self()) != members.end();
  if (!fits) return Fail(id, "formed a group that cannot be");
  options_.self.last_epoch = formed.epoch;
  group_ = {.epoch = formed.epoch, .members = members};
  EnterPhase(GroupPhase::kLinking);
  // The leader, which knows who is late, is the first to give up.
  phase_deadline_ = now_ + 2 * options_.ready_timeout;
  actions_.push_back(GroupHasFormed{group_});
  for (const GroupMember& peer : group_.members) {
    if (peer.rank_offset == 0) continue;
    if (peer.rank_offset >= self().rank_offset) break;
    const ConnectionId link = ++last_connection_;
    connections_[link] = {.role = Role::kDialing,
                          .deadline = now_ + options_.connect_timeout,
                          .peer = peer};
    actions_.push_back(GroupConnect{link, peer.link_address});
  }
  SortEarlyLinks();
  MaybeReady();
}

void GroupFormation::SortEarlyLinks() {
  for (const ConnectionId id : Find(Role::kEarlyLink)) {
    const GroupLinkHello link = connections_.at(id).link;
    if (link.epoch <= group_.epoch) AcceptLink(id, link);
  }
}

void GroupFormation::OnLinkHello(ConnectionId id, const GroupLinkHello& link) {
  Connection& connection = connections_.at(id);
  if (is_leader() || connection.role != Role::kStranger) {
    return Fail(id, "made a link where none was due");
  }
  if (link.epoch <= last_epoch()) {
    AcceptLink(id, link);
    return MaybeReady();
  }
  // Its Formed came before ours.
  connection.role = Role::kEarlyLink;
  connection.deadline = now_ + options_.ready_timeout;
  connection.link = link;
}

// A link that fits no peer, or is of an old epoch, is closed.
void GroupFormation::AcceptLink(ConnectionId id, const GroupLinkHello& link) {
  const auto fits = [this, &link](const GroupMember& peer) {
    return peer.rank_offset == link.rank_offset &&
           peer.incarnation == link.incarnation &&
           peer.rank_offset > self().rank_offset;
  };
  const auto peer =
      std::find_if(group_.members.begin(), group_.members.end(), fits);
  const bool expected = phase_ == GroupPhase::kLinking &&
                        link.epoch == group_.epoch &&
                        peer != group_.members.end();
  if (!expected) return Close(id);
  for (const ConnectionId other : Find(Role::kLink)) {
    if (connections_.at(other).peer == *peer) return Close(id);
  }
  connections_.at(id) = {.role = Role::kLink, .peer = *peer};
}

void GroupFormation::MaybeReady() {
  // All but this process and the leader.
  if (phase_ != GroupPhase::kLinking ||
      Find(Role::kLink).size() + 2 < group_.members.size()) {
    return;
  }
  EnterPhase(GroupPhase::kReady);
  phase_deadline_ = now_ + 2 * options_.ready_timeout;
  Send(Find(Role::kLeader).front(), GroupReady{.epoch = group_.epoch});
}

void GroupFormation::OnStart(ConnectionId id, const GroupStart& start) {
  if (connections_.at(id).role != Role::kLeader ||
      phase_ != GroupPhase::kReady || start.epoch != group_.epoch) {
    return Fail(id, "said Start where none was due");
  }
  EnterPhase(GroupPhase::kRunning);
  Note("started epoch " + std::to_string(group_.epoch));
  actions_.push_back(GroupHasStarted{group_});
}

// Names those without a link; with all links, the leader.
void GroupFormation::GiveUpOnStart() {
  std::vector<GroupMember> linked = {self(), group_.members[0]};
  for (const ConnectionId id : Find(Role::kLink)) {
    linked.push_back(connections_.at(id).peer);
  }
  std::vector<uint32_t> ranks = FindMissingRanks(options_.self.ep_size, linked);
  if (ranks.empty()) ranks = RanksOf(group_.members[0]);
  EndNow(std::move(ranks), "no Start in time");
}

}  // namespace baton
