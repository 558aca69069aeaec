#include "comm/group_links.h"

#include <utility>

#include "base/random.h"
#include "comm/group_links_loop.h"
#include "comm/host_id.h"
#include "comm/stream_socket.h"

namespace baton {
namespace {

absl::StatusOr<FileDescriptor> ListenAsLeader(const std::string& leader) {
  const std::optional<HostPort> address = ParseHostPort(leader);
  if (!address.has_value()) {
    return absl::InvalidArgumentError("--leader is not host:port: '" + leader +
                                      "'");
  }
  auto listener = ListenOn(*address);
  if (!listener.ok()) {
    return absl::Status(listener.status().code(),
                        "--leader cannot be bound: " + leader + ": " +
                            std::string(listener.status().message()));
  }
  return listener;
}

}  // namespace

absl::StatusOr<std::unique_ptr<GroupLinks>> GroupLinks::Start(
    GroupLinksOptions options, GroupCallbacks callbacks) {
  GroupHello& self = options.formation.self;
  if (self.member.incarnation == 0) self.member.incarnation = RandomBits();
  if (self.member.host_id.empty()) self.member.host_id = ReadHostId();
  const std::string& leader = options.formation.leader_address;
  const bool is_alone = self.member.local_ranks == self.ep_size;
  FileDescriptor listener;
  if (self.member.rank_offset == 0 && !is_alone) {
    auto bound = ListenAsLeader(leader);
    if (!bound.ok()) return bound.status();
    listener = *std::move(bound);
    self.member.link_address = leader;
  } else if (!is_alone && !ParseHostPort(leader).has_value()) {
    return absl::InvalidArgumentError("--leader is not host:port: '" + leader +
                                      "'");
  }
  return std::unique_ptr<GroupLinks>(
      new GroupLinks(std::make_unique<GroupLinksLoop>(
          std::move(options), std::move(callbacks), std::move(listener))));
}

GroupLinks::GroupLinks(std::unique_ptr<GroupLinksLoop> loop)
    : loop_(std::move(loop)), thread_([this] { loop_->Run(); }) {}

GroupLinks::~GroupLinks() { Stop(); }

void GroupLinks::Join(std::string transport_address) {
  loop_->Post(GroupJoinCommand{std::move(transport_address)});
}

void GroupLinks::EndEpoch(uint64_t epoch, std::vector<uint32_t> ranks,
                          std::string reason) {
  loop_->Post(GroupEndCommand{epoch, std::move(ranks), std::move(reason)});
}

void GroupLinks::Stop() {
  loop_->Post(GroupStopCommand{});
  if (thread_.joinable()) thread_.join();
}

uint16_t GroupLinks::port() const { return loop_->port(); }

}  // namespace baton
