#include "comm/group_formation.h"

#include <algorithm>
#include <utility>

#include "base/logging.h"
#include "comm/group_agreement.h"

namespace baton {

GroupFormation::GroupFormation(GroupFormationOptions options)
    : options_(std::move(options)) {}

void GroupFormation::Join(std::string transport_address) {
  CHECK(phase_ == GroupPhase::kOutside) << "joined twice";
  options_.self.member.transport_address = std::move(transport_address);
  next_progress_ = now_ + options_.progress_interval;
  if (is_leader()) {
    EnterPhase(GroupPhase::kGathering);
    MaybeForm();
  } else if (failures_ == 0) {
    Dial();
  } else {
    Pause("");
  }
}

ConnectionId GroupFormation::Accepted() {
  const ConnectionId id = ++last_connection_;
  const size_t strangers = Find(Role::kStranger).size() +
                           Find(Role::kWaiting).size() +
                           Find(Role::kEarlyLink).size();
  if (phase_ == GroupPhase::kRefused || strangers >= options_.max_strangers) {
    actions_.push_back(GroupClose{id});
    return id;
  }
  connections_[id] = {.role = Role::kStranger,
                      .deadline = now_ + options_.hello_timeout};
  return id;
}

void GroupFormation::Connected(ConnectionId id, std::string link_address) {
  const auto it = connections_.find(id);
  if (it == connections_.end()) return;
  it->second.deadline = absl::InfiniteFuture();
  if (it->second.role == Role::kLeader) {
    options_.self.member.link_address = std::move(link_address);
    Send(id, options_.self);
    EnterPhase(GroupPhase::kGathering);
    return;
  }
  CHECK(it->second.role == Role::kDialing);
  it->second.role = Role::kLink;
  Send(id, GroupLinkHello{.epoch = group_.epoch,
                          .rank_offset = self().rank_offset,
                          .incarnation = self().incarnation});
  MaybeReady();
}

void GroupFormation::Closed(ConnectionId id, std::string_view why) {
  const auto node = connections_.extract(id);
  if (!node.empty()) OnLost(node.mapped(), why);
}

void GroupFormation::Received(ConnectionId id, const GroupMessage& message) {
  if (!connections_.contains(id)) return;
  if (const auto* hello = std::get_if<GroupHello>(&message)) {
    OnHello(id, *hello);
  } else if (const auto* refused = std::get_if<GroupRefused>(&message)) {
    OnRefused(id, *refused);
  } else if (const auto* formed = std::get_if<GroupFormed>(&message)) {
    OnFormed(id, *formed);
  } else if (const auto* link = std::get_if<GroupLinkHello>(&message)) {
    OnLinkHello(id, *link);
  } else if (const auto* ready = std::get_if<GroupReady>(&message)) {
    OnReady(id, *ready);
  } else if (const auto* start = std::get_if<GroupStart>(&message)) {
    OnStart(id, *start);
  } else if (const auto* ending = std::get_if<GroupEpochEnding>(&message)) {
    OnEnding(id, *ending);
  } else {
    OnForeignVersion(id, std::get<GroupForeignVersion>(message).version);
  }
}

void GroupFormation::EndEpoch(uint64_t epoch, std::vector<uint32_t> ranks,
                              std::string_view reason) {
  if (has_group() && epoch == group_.epoch) EndNow(std::move(ranks), reason);
}

void GroupFormation::Tick(absl::Time now) {
  now_ = std::max(now_, now);
  std::vector<ConnectionId> due;
  for (const auto& [id, connection] : connections_) {
    if (connection.deadline <= now_) due.push_back(id);
  }
  for (const ConnectionId id : due) OnConnectionDeadline(id);
  if (phase_deadline_ <= now_) {
    phase_deadline_ = absl::InfiniteFuture();
    OnPhaseDeadline();
  }
  if (next_progress_ <= now_) NoteProgress();
}

std::vector<GroupAction> GroupFormation::TakeActions() {
  return std::exchange(actions_, {});
}

absl::Time GroupFormation::next_deadline() const {
  absl::Time next = std::min(phase_deadline_, next_progress_);
  for (const auto& [id, connection] : connections_) {
    next = std::min(next, connection.deadline);
  }
  return next;
}

bool GroupFormation::has_group() const {
  return phase_ == GroupPhase::kLinking || phase_ == GroupPhase::kReady ||
         phase_ == GroupPhase::kRunning;
}

void GroupFormation::EnterPhase(GroupPhase phase) {
  CHECK(IsLegalTransition(phase_, phase))
      << static_cast<int>(phase_) << " to " << static_cast<int>(phase);
  phase_ = phase;
  phase_since_ = now_;
  phase_deadline_ = absl::InfiniteFuture();
  if (has_group()) next_progress_ = absl::InfiniteFuture();
}

void GroupFormation::Note(std::string text) {
  actions_.push_back(GroupNote{"group " + std::move(text)});
}

void GroupFormation::Send(ConnectionId id, GroupMessage message) {
  actions_.push_back(GroupSend{id, std::move(message)});
}

void GroupFormation::Close(ConnectionId id) {
  connections_.erase(id);
  actions_.push_back(GroupClose{id});
}

// As if the other side had closed it.
void GroupFormation::Fail(ConnectionId id, std::string_view why) {
  const Connection lost = connections_.at(id);
  Close(id);
  OnLost(lost, why);
}

void GroupFormation::OnLost(const Connection& lost, std::string_view why) {
  const bool to_leader = lost.role == Role::kLeader;
  if (to_leader && !has_group()) return Pause(why);
  if (IsOfEpoch(lost.role)) {
    const GroupMember& peer = to_leader ? group_.members[0] : lost.peer;
    return EndNow(RanksOf(peer),
                  "lost ranks " + FormatRanks(peer) + ": " + std::string(why));
  }
  if (lost.role == Role::kMember) {
    Note("lost ranks " + FormatRanks(lost.peer) +
         " before it formed: " + std::string(why));
    AdmitWaiting();
  }
}

std::vector<ConnectionId> GroupFormation::Find(Role role) const {
  std::vector<ConnectionId> found;
  for (const auto& [id, connection] : connections_) {
    if (connection.role == role) found.push_back(id);
  }
  return found;
}

bool GroupFormation::IsOfEpoch(Role role) const {
  return has_group() && (role == Role::kMember || role == Role::kLeader ||
                         role == Role::kDialing || role == Role::kLink);
}

void GroupFormation::EndNow(std::vector<uint32_t> ranks,
                            std::string_view reason) {
  const bool started = phase_ == GroupPhase::kRunning;
  // A group that starts and ends in a loop has pauses, but short ones.
  const bool lasted = started && now_ - phase_since_ >= options_.max_pause;
  failures_ = started ? !lasted : std::max(failures_, 1u);
  std::erase_if(ranks,
                [this](uint32_t r) { return r >= options_.self.ep_size; });
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  const GroupEpochEnding ending = {.epoch = group_.epoch,
                                   .ranks = std::move(ranks),
                                   .reason = BoundedText(reason)};
  for (const Role role :
       {Role::kMember, Role::kLeader, Role::kLink, Role::kDialing}) {
    for (const ConnectionId id : Find(role)) {
      if (role != Role::kDialing) Send(id, ending);
      Close(id);
    }
  }
  EnterPhase(GroupPhase::kOutside);
  Note("ended epoch " + std::to_string(ending.epoch) + " ranks " +
       FormatRanks(ending.ranks) + ": " + ending.reason);
  actions_.push_back(GroupHasEnded{{.epoch = ending.epoch,
                                    .started = started,
                                    .ranks = ending.ranks,
                                    .reason = ending.reason}});
  group_ = {};
  if (is_leader()) AdmitWaiting();
}

void GroupFormation::OnEnding(ConnectionId id, const GroupEpochEnding& ending) {
  if (!IsOfEpoch(connections_.at(id).role) || ending.epoch != group_.epoch) {
    return Fail(id, "it ended an epoch that isn't ours");
  }
  EndNow(ending.ranks, ending.reason);
}

void GroupFormation::OnConnectionDeadline(ConnectionId id) {
  const auto it = connections_.find(id);
  if (it == connections_.end()) return;  // Closed by an earlier one.
  it->second.deadline = absl::InfiniteFuture();
  if (it->second.role == Role::kWaiting) return OnTakeoverDeadline(id);
  Fail(id, "no answer in time");
}

void GroupFormation::OnPhaseDeadline() {
  if (phase_ == GroupPhase::kPausing) return Dial();
  if (is_leader()) return DropLateMembers();
  GiveUpOnStart();
}

void GroupFormation::NoteProgress() {
  next_progress_ = now_ + options_.progress_interval;
  if (is_leader()) {
    const std::vector<GroupMember> members = Members();
    return Note("waits for ranks " +
                FormatRanks(FindMissingRanks(options_.self.ep_size, members)) +
                " of " + std::to_string(options_.self.ep_size) + ", has " +
                std::to_string(members.size()) + " processes");
  }
  if (phase_ == GroupPhase::kGathering) {
    return Note("waits for other ranks at the leader " +
                options_.leader_address);
  }
  Note("waits for the leader " + options_.leader_address + ": " +
       last_failure_);
}

void GroupFormation::CheckInvariants() const {
  for (const auto& [id, connection] : connections_) {
    const Role role = connection.role;
    const bool leaders_own = role == Role::kMember || role == Role::kWaiting;
    CHECK(role == Role::kStranger || leaders_own == is_leader());
    CHECK(has_group() || (role != Role::kLink && role != Role::kDialing));
    CHECK(phase_ != GroupPhase::kRefused || role == Role::kStranger);
  }
  CHECK_LE(Find(Role::kLeader).size(), 1u);
  if (!has_group()) return;
  CHECK(IsWholeGroup(options_.self.ep_size, group_.members));
  CHECK_EQ(group_.epoch, last_epoch());
  const size_t others = group_.members.size() - 1;
  if (is_leader()) {
    CHECK_EQ(Find(Role::kMember).size(), others);
    return;
  }
  CHECK_EQ(Find(Role::kLeader).size(), 1u);
  if (phase_ != GroupPhase::kLinking) {
    CHECK_EQ(Find(Role::kLink).size(), others - 1);
  }
}

}  // namespace baton
