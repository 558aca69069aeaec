#include "comm/group_links_loop.h"

#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/logging.h"
#include "comm/group_agreement.h"

namespace baton {
namespace {

constexpr absl::Duration kLingerTime = absl::Seconds(1);
constexpr size_t kMaxLingering = 256;
constexpr absl::Duration kAcceptPause = absl::Milliseconds(100);
// In one turn, so that all sockets have theirs.
constexpr int kMaxAccepts = 64;
constexpr int kMaxReads = 16;
constexpr size_t kReadBytes = 16 << 10;

bool IsJustLater(int error) {
  return error == EAGAIN || error == EWOULDBLOCK || error == EINTR;
}

// What can be sent of `*out` now. False: no more can, ever.
bool SendSome(int fd, std::string* out) {
  while (!out->empty()) {
    const ssize_t sent = send(fd, out->data(), out->size(), MSG_NOSIGNAL);
    if (sent < 0) return IsJustLater(errno);
    out->erase(0, static_cast<size_t>(sent));
  }
  return true;
}

int16_t WantedEvents(bool connecting, const std::string& out) {
  if (connecting) return POLLOUT;
  return static_cast<int16_t>(out.empty() ? POLLIN : POLLIN | POLLOUT);
}

// False when the other side has closed as well.
bool DiscardInput(int fd) {
  char buffer[kReadBytes];
  for (int i = 0; i < kMaxReads; ++i) {
    const ssize_t got = recv(fd, buffer, sizeof buffer, 0);
    if (got < 0) return IsJustLater(errno);
    if (got == 0) return false;
  }
  return true;
}

}  // namespace

GroupLinksLoop::GroupLinksLoop(GroupLinksOptions options,
                               GroupCallbacks callbacks,
                               FileDescriptor listener)
    : options_(std::move(options)),
      callbacks_(std::move(callbacks)),
      wake_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
      port_(listener.valid() ? LocalAddress(listener).port : 0),
      formation_(options_.formation),
      listener_(std::move(listener)) {
  CHECK(wake_.valid()) << WithErrno("eventfd", errno);
}

void GroupLinksLoop::Run() {
  formation_.Tick(clock_.Now());
  while (!stopping_) Turn();
  Leave();
}

void GroupLinksLoop::Post(GroupCommand command) {
  commands_.Push(std::move(command));
  const uint64_t one = 1;
  // Fails only if it is set already.
  [[maybe_unused]] const ssize_t n = write(wake_.get(), &one, sizeof one);
}

// What has arrived comes before commands and newcomers: a process that says
// Hello again is gone from its old epoch first.
void GroupLinksLoop::Turn() {
  std::vector<ConnectionId> ids;
  for (const auto& [id, socket] : sockets_) ids.push_back(id);
  std::vector<pollfd> polls = Polls();
  WaitForAny(&polls, NextDeadline());
  formation_.Tick(clock_.Now());
  Act();
  for (size_t i = 0; i < ids.size(); ++i) {
    const pollfd& polled = polls[kFirstSocket + i];
    if (polled.revents != 0) OnReady(ids[i], polled.revents);
  }
  RunCommands();
  if (polls[kListener].revents != 0) Accept();
  Linger();
}

std::vector<pollfd> GroupLinksLoop::Polls() const {
  const bool accepts = clock_.Now() >= accept_again_;
  std::vector<pollfd> polls(kFirstSocket);
  polls[kWake] = {wake_.get(), POLLIN, 0};
  // Of a negative one nothing is reported.
  polls[kListener] = {accepts ? listener_.get() : -1, POLLIN, 0};
  for (const auto& [id, socket] : sockets_) {
    polls.push_back(
        {socket.fd.get(), WantedEvents(socket.connecting, socket.out), 0});
  }
  for (const Socket& socket : lingering_) {
    polls.push_back({socket.fd.get(), WantedEvents(false, socket.out), 0});
  }
  return polls;
}

absl::Time GroupLinksLoop::NextDeadline() const {
  absl::Time next = formation_.next_deadline();
  if (accept_again_ > clock_.Now()) next = std::min(next, accept_again_);
  // The first of them is the oldest.
  if (lingering_.empty()) return next;
  return std::min(next, lingering_.front().linger_until);
}

void GroupLinksLoop::WaitForAny(std::vector<pollfd>* polls,
                                absl::Time until) const {
  const absl::Duration wait =
      std::clamp(until - clock_.Now(), absl::ZeroDuration(), absl::Hours(1));
  const timespec timeout = absl::ToTimespec(wait);
  ppoll(polls->data(), polls->size(), &timeout, nullptr);
}

void GroupLinksLoop::RunCommands() {
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t n = read(wake_.get(), &count, sizeof count);
  std::vector<GroupCommand> commands;
  commands_.Drain(&commands);
  for (GroupCommand& command : commands) {
    if (auto* join = std::get_if<GroupJoinCommand>(&command)) {
      formation_.Join(std::move(join->transport_address));
    } else if (auto* end = std::get_if<GroupEndCommand>(&command)) {
      formation_.EndEpoch(end->epoch, std::move(end->ranks), end->reason);
    } else {
      stopping_ = true;
      return;
    }
    Act();
  }
}

void GroupLinksLoop::Accept() {
  for (int i = 0; i < kMaxAccepts; ++i) {
    auto accepted = AcceptFrom(listener_);
    if (absl::IsResourceExhausted(accepted.status())) {
      LOG(WARNING) << "group links " << accepted.status().message();
      accept_again_ = clock_.Now() + kAcceptPause;
    }
    if (!accepted.ok()) return;
    KeepAlive(*accepted, options_.dead_host_timeout);
    sockets_.emplace(formation_.Accepted(), Socket{.fd = *std::move(accepted)});
    Act();
  }
}

void GroupLinksLoop::OnReady(ConnectionId id, int events) {
  const auto it = sockets_.find(id);
  if (it == sockets_.end()) return;  // Closed a moment ago.
  if (it->second.connecting) return OnConnected(id);
  if (events & POLLOUT) Write(&it->second);
  if (events & ~POLLOUT) Read(id);
}

void GroupLinksLoop::OnConnected(ConnectionId id) {
  Socket& socket = sockets_.at(id);
  const absl::Status status = ConnectResult(socket.fd);
  if (!status.ok()) {
    return Lose(id, "cannot connect to " + socket.peer + ": " +
                        std::string(status.message()));
  }
  socket.connecting = false;
  KeepAlive(socket.fd, options_.dead_host_timeout);
  // Peers of a member come by the network by which it reaches the leader.
  if (formation_.phase() == GroupPhase::kConnecting) {
    const absl::Status listens = Listen(LocalAddress(socket.fd).host);
    if (!listens.ok()) return Lose(id, listens.ToString());
  }
  formation_.Connected(id, FormatHostPort(LocalAddress(listener_)));
  Act();
}

absl::Status GroupLinksLoop::Listen(const std::string& host) {
  if (listener_.valid() && host == listening_host_) return absl::OkStatus();
  auto listener = ListenOn({.host = host, .port = 0});
  if (!listener.ok()) return listener.status();
  listener_ = *std::move(listener);
  listening_host_ = host;
  return absl::OkStatus();
}

// What it said before it closed counts first.
void GroupLinksLoop::Read(ConnectionId id) {
  char buffer[kReadBytes];
  for (int i = 0; i < kMaxReads; ++i) {
    Socket& socket = sockets_.at(id);
    const ssize_t got = recv(socket.fd.get(), buffer, sizeof buffer, 0);
    if (got < 0 && IsJustLater(errno)) return;
    if (got < 0) return Lose(id, WithErrno("its connection failed", errno));
    if (got == 0) return Lose(id, "it closed its connection");
    socket.in.Append({buffer, static_cast<size_t>(got)});
    if (!Handle(id)) return;
  }
}

// All whole messages that are there. False: the connection is no more.
bool GroupLinksLoop::Handle(ConnectionId id) {
  for (;;) {
    const auto it = sockets_.find(id);
    if (it == sockets_.end()) return false;
    const std::optional<GroupMessage> message = it->second.in.Next();
    if (it->second.in.failed()) {
      Lose(id, "it sent what is no message");
      return false;
    }
    if (!message.has_value()) return true;
    formation_.Received(id, *message);
    Act();
  }
}

// If it can't be sent, reading tells: what the other side said is yet to read.
void GroupLinksLoop::Write(Socket* socket) {
  if (!SendSome(socket->fd.get(), &socket->out)) socket->out.clear();
}

void GroupLinksLoop::Lose(ConnectionId id, std::string_view why) {
  const std::string text(why);
  sockets_.erase(id);
  formation_.Closed(id, text);
  Act();
}

void GroupLinksLoop::Linger() {
  const absl::Time now = clock_.Now();
  std::erase_if(lingering_, [now](Socket& socket) {
    const int fd = socket.fd.get();
    if (now >= socket.linger_until || !SendSome(fd, &socket.out)) return true;
    if (socket.out.empty()) shutdown(fd, SHUT_WR);
    return !DiscardInput(fd);
  });
}

void GroupLinksLoop::Leave() {
  const GroupMember& self = options_.formation.self.member;
  formation_.EndEpoch(formation_.last_epoch(), RanksOf(self),
                      "the process of ranks " + FormatRanks(self) + " leaves");
  Act();
  sockets_.clear();
  listener_ = FileDescriptor();
  for (Linger(); !lingering_.empty(); Linger()) {
    std::vector<pollfd> polls = Polls();
    polls[kWake].fd = -1;
    WaitForAny(&polls, lingering_.front().linger_until);
  }
}

void GroupLinksLoop::Act() {
  for (auto actions = formation_.TakeActions(); !actions.empty();
       actions = formation_.TakeActions()) {
    for (const GroupAction& action : actions) {
      std::visit([this](const auto& a) { Do(a); }, action);
    }
  }
}

void GroupLinksLoop::Do(const GroupConnect& action) {
  const std::optional<HostPort> address = ParseHostPort(action.address);
  if (!address.has_value()) {
    return formation_.Closed(action.connection,
                             "no address: '" + action.address + "'");
  }
  auto connecting = StartConnecting(*address, attempts_++);
  if (!connecting.ok()) {
    return formation_.Closed(action.connection,
                             std::string(connecting.status().message()));
  }
  sockets_.emplace(action.connection,
                   Socket{.fd = *std::move(connecting),
                          .peer = action.address,
                          .connecting = true,
                          .in = GroupFrameReader(kMaxFormedFrameBytes)});
}

void GroupLinksLoop::Do(const GroupSend& action) {
  const auto it = sockets_.find(action.connection);
  if (it == sockets_.end()) return;
  it->second.was_used = true;
  it->second.out += EncodeGroupFrame(action.message);
  Write(&it->second);
}

void GroupLinksLoop::Do(const GroupClose& action) {
  auto node = sockets_.extract(action.connection);
  if (node.empty()) return;
  Socket& socket = node.mapped();
  if (!socket.was_used || lingering_.size() >= kMaxLingering) return;
  socket.linger_until = clock_.Now() + kLingerTime;
  lingering_.push_back(std::move(socket));
}

void GroupLinksLoop::Do(const GroupHasFormed& action) {
  if (!stopping_ && callbacks_.formed) callbacks_.formed(action.group);
}

void GroupLinksLoop::Do(const GroupHasStarted& action) {
  if (!stopping_ && callbacks_.started) callbacks_.started(action.group);
}

void GroupLinksLoop::Do(const GroupHasEnded& action) {
  if (!stopping_ && callbacks_.ended) callbacks_.ended(action.end);
}

void GroupLinksLoop::Do(const GroupWasRefused& action) {
  if (stopping_ || !callbacks_.refused) return;
  callbacks_.refused(absl::FailedPreconditionError(
      "the group's leader " + options_.formation.leader_address +
      " refused this process: " + action.refused.reason));
}

void GroupLinksLoop::Do(const GroupNote& action) { LOG(INFO) << action.text; }

}  // namespace baton
