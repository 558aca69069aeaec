// Groups of processes that are objects of this one, over loopback.
#include "comm/group_links.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <functional>

#include "absl/synchronization/mutex.h"
#include "comm/stream_socket.h"

namespace baton {
namespace {

constexpr absl::Duration kDeadline = absl::Seconds(60);
constexpr uint32_t kLocalRanks = 2;

using Change = std::function<void(GroupLinksOptions*)>;

// One process of a group; joins again whenever an epoch has ended.
class Node {
 public:
  Node(uint32_t ep_size, uint32_t offset, const std::string& leader,
       const Change& change = {}) {
    GroupLinksOptions options;
    options.formation.self = {
        .fingerprint = "f",
        .options = {{"kv_dtype", "f32"}},
        .ep_size = ep_size,
        .member = {.rank_offset = offset, .local_ranks = kLocalRanks}};
    options.formation.leader_address = leader;
    if (change) change(&options);
    auto links = GroupLinks::Start(
        options, {.formed = [this](const GroupEpoch& e) { OnFormed(e); },
                  .started = [this](const GroupEpoch& e) { OnStarted(e); },
                  .ended = [this](const GroupEpochEnd& e) { OnEnded(e); },
                  .refused = [this](const absl::Status& s) { OnRefused(s); }});
    EXPECT_TRUE(links.ok()) << links.status();
    links_ = *std::move(links);
    links_->Join("transport" + std::to_string(offset));
  }

  ~Node() { Leave(); }

  GroupLinks* operator->() { return links_.get(); }
  void Leave() { links_->Stop(); }

  // Of the first epoch above `epoch` that it starts.
  GroupEpoch WaitForStart(uint64_t epoch = 0) {
    Wait([this, epoch] { return running_ && group_.epoch > epoch; });
    const absl::MutexLock lock(&mutex_);
    return group_;
  }
  // How the epoch that was `epoch` ended.
  GroupEpochEnd WaitForEnd(uint64_t epoch) {
    Wait([this, epoch] { return end_.epoch >= epoch; });
    const absl::MutexLock lock(&mutex_);
    return end_;
  }
  absl::Status WaitForRefusal() {
    Wait([this] { return !refused_.ok(); });
    const absl::MutexLock lock(&mutex_);
    return refused_;
  }

 private:
  void Wait(const std::function<bool()>& done) {
    const absl::MutexLock lock(&mutex_);
    EXPECT_TRUE(
        mutex_.AwaitWithTimeout(absl::Condition(&Call, &done), kDeadline));
  }
  static bool Call(const std::function<bool()>* f) { return (*f)(); }

  void OnFormed(const GroupEpoch& group) {
    const absl::MutexLock lock(&mutex_);
    EXPECT_GT(group.epoch, group_.epoch);
    group_ = group;
  }
  void OnStarted(const GroupEpoch& group) {
    const absl::MutexLock lock(&mutex_);
    EXPECT_EQ(group.members, group_.members);
    running_ = true;
  }
  void OnEnded(const GroupEpochEnd& end) {
    const absl::MutexLock lock(&mutex_);
    EXPECT_EQ(end.started, running_);
    running_ = false;
    if (end.started) end_ = end;
    links_->Join("again");
  }
  void OnRefused(const absl::Status& status) {
    const absl::MutexLock lock(&mutex_);
    refused_ = status;
  }

  absl::Mutex mutex_;
  GroupEpoch group_;
  bool running_ = false;
  GroupEpochEnd end_;  // Of the last that had started.
  absl::Status refused_;
  std::unique_ptr<GroupLinks> links_;
};

class GroupLinksTest : public ::testing::Test {
 protected:
  // Process 0 is the leader.
  void StartLeader(uint32_t processes) {
    ep_size_ = processes * kLocalRanks;
    nodes_.resize(processes);
    StartNode(0);
  }
  void StartAll(uint32_t processes) {
    StartLeader(processes);
    for (uint32_t i = 1; i < processes; ++i) StartNode(i);
  }
  void StartNode(uint32_t i, const Change& change = {}) {
    nodes_[i].reset();  // Before the new one: a leader's port is free again.
    nodes_[i] =
        std::make_unique<Node>(ep_size_, i * kLocalRanks, leader_, change);
    if (i == 0) leader_ = "127.0.0.1:" + std::to_string(node(0)->port());
  }
  Node& node(uint32_t i) { return *nodes_[i]; }
  uint64_t WaitUntilAllRun(uint64_t above = 0) {
    const GroupEpoch group = node(0).WaitForStart(above);
    for (const auto& n : nodes_) {
      const GroupEpoch theirs = n->WaitForStart(above);
      EXPECT_EQ(theirs.epoch, group.epoch);
      EXPECT_EQ(theirs.members, group.members);
    }
    return group.epoch;
  }
  // All but `gone` name its ranks.
  void ExpectAllName(uint32_t gone, uint64_t epoch) {
    for (uint32_t i = 0; i < nodes_.size(); ++i) {
      if (i == gone) continue;
      const GroupEpochEnd end = node(i).WaitForEnd(epoch);
      EXPECT_EQ(end.ranks, (std::vector<uint32_t>{gone * kLocalRanks,
                                                  gone * kLocalRanks + 1}))
          << i << ": " << end.reason;
    }
  }

  std::string leader_ = "127.0.0.1:0";
  uint32_t ep_size_ = 0;
  std::vector<std::unique_ptr<Node>> nodes_;
};

TEST_F(GroupLinksTest, AProcessWithAllRanksIsAGroup) {
  StartAll(1);
  EXPECT_EQ(node(0).WaitForStart().members.size(), 1u);
}

TEST_F(GroupLinksTest, EveryProcessKnowsTheSameGroup) {
  StartAll(5);
  WaitUntilAllRun();
  const GroupEpoch group = node(3).WaitForStart();
  ASSERT_EQ(group.members.size(), 5u);
  for (uint32_t i = 0; i < 5; ++i) {
    EXPECT_EQ(group.members[i].rank_offset, i * kLocalRanks);
    EXPECT_EQ(group.members[i].transport_address,
              "transport" + std::to_string(i * kLocalRanks));
    EXPECT_FALSE(group.members[i].host_id.empty());
  }
}

TEST_F(GroupLinksTest, ALeaderThatComesLastIsFound) {
  StartLeader(3);
  node(0).Leave();  // Its port is known and free.
  StartNode(2);
  StartNode(1);
  StartNode(0);
  WaitUntilAllRun();
}

TEST_F(GroupLinksTest, ALostProcessIsNamedByAllAndItsReturnFormsTheGroup) {
  StartAll(4);
  uint64_t epoch = WaitUntilAllRun();
  for (const uint32_t gone : {2u, 0u, 3u, 1u}) {
    node(gone).Leave();
    ExpectAllName(gone, epoch);
    StartNode(gone);
    const uint64_t next = WaitUntilAllRun(epoch);
    EXPECT_GT(next, epoch);
    epoch = next;
  }
}

TEST_F(GroupLinksTest, TheRanksThatAWatchdogSuspectsAreNamedByAll) {
  StartAll(4);
  const uint64_t epoch = WaitUntilAllRun();
  node(1)->EndEpoch(epoch, {4, 5}, "no ballot");
  for (uint32_t i = 0; i < 4; ++i) {
    const GroupEpochEnd end = node(i).WaitForEnd(epoch);
    EXPECT_EQ(end.ranks, (std::vector<uint32_t>{4, 5}));
    EXPECT_EQ(end.reason, "no ballot");
  }
  WaitUntilAllRun(epoch);
}

TEST_F(GroupLinksTest, AProcessWithAnotherOptionIsRefusedWithBothValues) {
  StartLeader(2);
  StartNode(1, [](GroupLinksOptions* options) {
    options->formation.self.options[0].value = "bf16";
  });
  const absl::Status status = node(1).WaitForRefusal();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(std::string(status.message()),
            "the group's leader " + leader_ +
                " refused this process: --kv_dtype is f32 on ranks 0..1 (the "
                "leader) and bf16 on ranks 2..3");
  StartNode(1);
  WaitUntilAllRun();
}

// A connection to the leader that says `bytes`.
FileDescriptor Connect(uint16_t port, const std::string& bytes) {
  auto socket = StartConnecting({.host = "127.0.0.1", .port = port}, 0);
  EXPECT_TRUE(socket.ok()) << socket.status();
  pollfd writable = {socket->get(), POLLOUT, 0};
  poll(&writable, 1, static_cast<int>(absl::ToInt64Milliseconds(kDeadline)));
  EXPECT_TRUE(ConnectResult(*socket).ok());
  EXPECT_EQ(send(socket->get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(bytes.size()));
  return *std::move(socket);
}
bool WaitUntilClosed(const FileDescriptor& socket) {
  pollfd readable = {socket.get(), POLLIN, 0};
  poll(&readable, 1, static_cast<int>(absl::ToInt64Milliseconds(kDeadline)));
  char byte = 0;
  return recv(socket.get(), &byte, 1, 0) <= 0;
}

TEST_F(GroupLinksTest, StrangersOnThePortHarmNobody) {
  StartAll(2);
  const uint64_t epoch = WaitUntilAllRun();
  const uint16_t port = node(0)->port();
  const FileDescriptor garbage = Connect(port, "GET / HTTP/1.1\r\n\r\n");
  const FileDescriptor endless = Connect(port, std::string(4, '\xff'));
  const FileDescriptor liar =
      Connect(port, EncodeGroupFrame(GroupEpochEnding{epoch, {0}, "lie"}));
  EXPECT_TRUE(WaitUntilClosed(garbage));
  EXPECT_TRUE(WaitUntilClosed(endless));
  EXPECT_TRUE(WaitUntilClosed(liar));
  std::vector<FileDescriptor> silent;
  for (int i = 0; i < 257; ++i) silent.push_back(Connect(port, "x"));
  EXPECT_TRUE(WaitUntilClosed(silent.back()));
  silent.clear();
  // It is still the same epoch, and ends like any other.
  node(1)->EndEpoch(epoch, {1}, "over");
  EXPECT_EQ(node(0).WaitForEnd(epoch).reason, "over");
  WaitUntilAllRun(epoch);
}

TEST_F(GroupLinksTest, StopsInEveryPhase) {
  const std::string nobody = "127.0.0.1:1";
  for (const uint32_t offset : {0u, 2u}) {
    const Node waiting(4, offset, offset == 0 ? "127.0.0.1:0" : nobody);
  }
  const GroupLinksOptions options = {
      .formation = {.self = {.ep_size = 4,
                             .member = {.rank_offset = 2, .local_ranks = 2}},
                    .leader_address = nobody}};
  auto never_joined = GroupLinks::Start(options, {});
  ASSERT_TRUE(never_joined.ok());
  (*never_joined)->Stop();
  (*never_joined)->Stop();
}

TEST_F(GroupLinksTest, AnErrorOfTheLeadersAddressNamesTheFlag) {
  StartAll(2);
  GroupLinksOptions options = {
      .formation = {.self = {.ep_size = 4,
                             .member = {.rank_offset = 0, .local_ranks = 2}},
                    .leader_address = leader_}};
  const auto taken = GroupLinks::Start(options, {});
  EXPECT_EQ(taken.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(
      taken.status().ToString().find("--leader cannot be bound: " + leader_),
      std::string::npos)
      << taken.status();
  for (const uint32_t offset : {0u, 2u}) {
    options.formation.leader_address = "nowhere";
    options.formation.self.member.rank_offset = offset;
    const auto bad = GroupLinks::Start(options, {});
    EXPECT_EQ(bad.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(bad.status().ToString().find("--leader"), std::string::npos);
  }
}

}  // namespace
}  // namespace baton
