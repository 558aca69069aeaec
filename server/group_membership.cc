#include "server/group_membership.h"

#include <utility>

#include "base/logging.h"
#include "base/status_macros.h"
#include "comm/group_agreement.h"

namespace baton {

absl::StatusOr<std::unique_ptr<GroupMembership>> GroupMembership::Start(
    const GroupMembershipOptions& options) {
  std::unique_ptr<GroupMembership> membership(new GroupMembership(options));
  ASSIGN_OR_RETURN(membership->links_,
                   GroupLinks::Start({.formation = options.formation},
                                     membership->MakeCallbacks()));
  RETURN_IF_ERROR(membership->Join());
  const GroupHello& self = options.formation.self;
  LOG(INFO) << "joins its group with ranks " << FormatRanks(self.member)
            << " of " << self.ep_size << " leader '"
            << options.formation.leader_address << "'";
  return membership;
}

GroupMembership::~GroupMembership() { Leave(); }

GroupCallbacks GroupMembership::MakeCallbacks() {
  return {
      .formed = [this](const GroupEpoch& group) { OnFormed(group); },
      .started =
          [this](const GroupEpoch& group) { OnEvent(EpochStarted{group}); },
      .ended = [this](const GroupEpochEnd& end) { OnEvent(EpochEnded{end}); },
      .refused =
          [this](const absl::Status& status) { OnEvent(GroupRefusal{status}); },
  };
}

absl::Status GroupMembership::Join() {
  ASSIGN_OR_RETURN(std::unique_ptr<GroupTransport> next,
                   GroupTransport::Create(options_.transport));
  const std::string address = next->address();
  {
    const absl::MutexLock lock(&mutex_);
    std::swap(transport_, next);
    connected_ = false;
  }
  next.reset();  // The old one, without the lock.
  links_->Join(address);
  return absl::OkStatus();
}

void GroupMembership::OnFormed(const GroupEpoch& group) {
  absl::Status status;
  {
    const absl::MutexLock lock(&mutex_);
    status = transport_->Connect(group);
    connected_ = status.ok();
    // Whoever waits outside shall wait on the channel, and look first at what
    // it was woken for there.
    outside_.Wake();
    channel()->Wake();
  }
  if (status.ok()) return;
  const GroupMember& self = options_.formation.self.member;
  links_->EndEpoch(group.epoch, RanksOf(self),
                   "it cannot connect: " + std::string(status.message()));
}

void GroupMembership::OnEvent(MembershipEvent event) {
  const bool ended = std::holds_alternative<EpochEnded>(event);
  events_.Push(std::move(event));
  {
    const absl::MutexLock lock(&mutex_);
    // Devices wait in it.
    if (ended && connected_) transport_->End();
  }
  Wake();
}

void GroupMembership::EndEpoch(const GroupEpoch& group,
                               std::vector<uint32_t> ranks,
                               std::string reason) {
  links_->EndEpoch(group.epoch, std::move(ranks), std::move(reason));
}

void GroupMembership::Leave() {
  if (links_ != nullptr) links_->Stop();
}

GroupChannel* GroupMembership::channel() {
  const bool has_one = connected_ && transport_->channel().status().ok();
  return has_one ? &transport_->channel() : &outside_;
}

void GroupMembership::Wait(absl::Duration timeout) {
  GroupChannel* waits_on;
  {
    const absl::MutexLock lock(&mutex_);
    waits_on = channel();
  }
  waits_on->Wait(timeout);
}

void GroupMembership::Wake() {
  const absl::MutexLock lock(&mutex_);
  channel()->Wake();
}

}  // namespace baton
