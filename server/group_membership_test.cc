// Groups of processes that are objects of this one, over loopback.
#include "server/group_membership.h"

#include <gtest/gtest.h>

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "base/logging.h"
#include "comm/stream_socket.h"
#include "server/group_membership_for_test.h"

namespace baton {
namespace {

using Ranks = std::vector<uint32_t>;
using Change = std::function<void(GroupMembershipOptions*)>;

GroupMembershipOptions OptionsOf(uint32_t process, uint32_t num_processes,
                                 const std::string& leader) {
  return MembershipOptions({.process = process,
                            .num_processes = num_processes,
                            .leader = leader,
                            .mode = UcxMode::kAuto});
}

// One process; all of them are turned by the test's thread.
class Process {
 public:
  explicit Process(const GroupMembershipOptions& options) {
    auto membership = GroupMembership::Start(options);
    CHECK_OK(membership.status());
    membership_ = *std::move(membership);
  }

  GroupMembership* operator->() { return membership_.get(); }

  // The next event, which is one of these.
  template <typename Event>
  Event Await() {
    while (!HasEvent()) membership_->Wait(absl::InfiniteDuration());
    const MembershipEvent event = std::move(pending_.front());
    pending_.pop_front();
    CHECK(std::holds_alternative<Event>(event)) << event.index();
    return std::get<Event>(event);
  }
  GroupEpoch AwaitStart() { return Await<EpochStarted>().group; }
  GroupEpochEnd AwaitEnd() { return Await<EpochEnded>().end; }
  bool HasEvent() {
    membership_->TakeEvents(&taken_);
    pending_.insert(pending_.end(), taken_.begin(), taken_.end());
    return !pending_.empty();
  }

 private:
  std::unique_ptr<GroupMembership> membership_;
  std::vector<MembershipEvent> taken_;
  std::deque<MembershipEvent> pending_;
};

class GroupMembershipTest : public testing::TestWithParam<UcxMode> {
 protected:
  void StartAll(uint32_t count) {
    for (uint32_t p = 0; p < count; ++p) processes_.push_back(nullptr);
    for (uint32_t p = 0; p < count; ++p) Start(p);
  }
  void Start(uint32_t p, const Change& change = {}) {
    GroupMembershipOptions options =
        OptionsOf(p, static_cast<uint32_t>(processes_.size()), leader_);
    options.transport.mode = GetParam();
    if (change) change(&options);
    processes_[p] = std::make_unique<Process>(options);
  }
  Process& process(uint32_t p) { return *processes_[p]; }
  void JoinAll() {
    for (const auto& process : processes_) CHECK_OK((*process)->Join());
  }
  // The same on all; then all talk.
  GroupEpoch AwaitStarts() {
    const GroupEpoch group = process(0).AwaitStart();
    EXPECT_EQ(group.members.size(), processes_.size());
    for (uint32_t p = 1; p < processes_.size(); ++p) {
      const GroupEpoch theirs = process(p).AwaitStart();
      EXPECT_EQ(theirs.epoch, group.epoch);
      EXPECT_EQ(theirs.members, group.members);
    }
    ExpectMessages();
    ExpectExchange();
    return group;
  }
  // Each says its name to all others.
  void ExpectMessages() {
    const auto count = static_cast<uint32_t>(processes_.size());
    for (uint32_t p = 0; p < count; ++p) {
      for (uint32_t to = 0; to < count; ++to) {
        if (to != p) Channel(p).Send(to, std::to_string(p));
      }
    }
    std::vector<uint32_t> missing(count, count - 1);
    while (missing != std::vector<uint32_t>(count, 0)) {
      for (uint32_t p = 0; p < count; ++p) missing[p] -= Receive(p);
    }
  }
  // Of no rows, on a thread for each rank.
  void ExpectExchange() {
    std::vector<std::thread> ranks;
    for (uint32_t rank = 0; rank < processes_.size() * kLocalRanks; ++rank) {
      GroupTransport* transport = &process(rank / kLocalRanks)->transport();
      ranks.emplace_back([transport, rank] {
        const auto dispatch = transport->MakeDispatch(rank);
        dispatch->Combine(MatrixView<float>{.cols = kHidden});
        EXPECT_TRUE(dispatch->status().ok()) << dispatch->status();
      });
    }
    for (std::thread& rank : ranks) rank.join();
  }
  GroupChannel& Channel(uint32_t p) {
    return process(p)->transport().channel();
  }

 private:
  uint32_t Receive(uint32_t p) {
    std::vector<ChannelMessage> received;
    Channel(p).Receive(&received);
    for (const ChannelMessage& message : received) {
      EXPECT_EQ(message.bytes, std::to_string(message.from));
    }
    return static_cast<uint32_t>(received.size());
  }

  const std::string leader_ = FreeAddress();
  std::vector<std::unique_ptr<Process>> processes_;
};

INSTANTIATE_TEST_SUITE_P(Ways, GroupMembershipTest,
                         testing::Values(UcxMode::kShm, UcxMode::kTcp));

TEST_P(GroupMembershipTest, AllStartTheSameEpochAndTalkInIt) {
  StartAll(3);
  AwaitStarts();
  const std::string way = GetParam() == UcxMode::kShm ? "shm" : "ucx";
  for (uint32_t p = 0; p < 3; ++p) {
    EXPECT_EQ(process(p)->transport().way(), way);
    EXPECT_TRUE(process(p)->transport().status().ok());
  }
}

TEST_P(GroupMembershipTest, OneProcessIsAGroup) {
  StartAll(1);
  AwaitStarts();
  EXPECT_STREQ(process(0)->transport().way(), "local");
}

TEST_P(GroupMembershipTest, WhoEndsAnEpochNamesRanksToAll) {
  StartAll(3);
  const GroupEpoch group = AwaitStarts();
  process(1)->EndEpoch(group, {4, 5}, "no vote");
  for (uint32_t p = 0; p < 3; ++p) {
    const GroupEpochEnd end = process(p).AwaitEnd();
    EXPECT_EQ(end.epoch, group.epoch);
    EXPECT_TRUE(end.started);
    EXPECT_EQ(end.ranks, (Ranks{4, 5}));
    EXPECT_EQ(end.reason, "no vote");
    // Nothing waits for the others any more.
    const auto dispatch = process(p)->transport().MakeDispatch(p * kLocalRanks);
    dispatch->Combine(MatrixView<float>{.cols = kHidden});
    EXPECT_FALSE(dispatch->status().ok());
    EXPECT_EQ(Channel(p).status().code(), absl::StatusCode::kUnavailable);
  }
}

TEST_P(GroupMembershipTest, AllThatJoinAgainAreInALaterEpoch) {
  StartAll(2);
  GroupEpoch group = AwaitStarts();
  for (int round = 0; round < 3; ++round) {
    process(0)->EndEpoch(group, {2}, "slow");
    for (uint32_t p = 0; p < 2; ++p) process(p).AwaitEnd();
    JoinAll();
    const GroupEpoch next = AwaitStarts();
    EXPECT_GT(next.epoch, group.epoch);
    group = next;
  }
}

TEST_P(GroupMembershipTest, AnEpochOfOldCannotBeEnded) {
  StartAll(2);
  const GroupEpoch old = AwaitStarts();
  process(0)->EndEpoch(old, {2}, "slow");
  for (uint32_t p = 0; p < 2; ++p) process(p).AwaitEnd();
  JoinAll();
  const GroupEpoch group = AwaitStarts();
  process(1)->EndEpoch(old, {0}, "late");
  process(1)->EndEpoch(group, {1}, "now");
  for (uint32_t p = 0; p < 2; ++p) {
    EXPECT_EQ(process(p).AwaitEnd().reason, "now");
  }
}

TEST_P(GroupMembershipTest, WhoLeavesIsNamedAndMayReturn) {
  StartAll(3);
  uint64_t epoch = AwaitStarts().epoch;
  for (const uint32_t gone : {1u, 0u, 2u}) {
    process(gone)->Leave();
    process(gone)->Leave();
    for (uint32_t p = 0; p < 3; ++p) {
      if (p == gone) continue;
      EXPECT_EQ(process(p).AwaitEnd().ranks, (Ranks{2 * gone, 2 * gone + 1}));
      CHECK_OK(process(p)->Join());
    }
    EXPECT_FALSE(process(gone).HasEvent());
    Start(gone);
    const GroupEpoch group = AwaitStarts();
    EXPECT_GT(group.epoch, epoch);
    epoch = group.epoch;
  }
}

TEST_P(GroupMembershipTest, AnotherOptionIsRefusedByItsName) {
  StartAll(2);
  AwaitStarts();
  Start(1, [](GroupMembershipOptions* options) {
    options->formation.self.options[0].value = "another";
  });
  const absl::Status status = process(1).Await<GroupRefusal>().status;
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(std::string(status.message())
                .find("--option is same on ranks 0..1 (the leader) and another "
                      "on ranks 2..3"),
            std::string::npos)
      << status;
}

TEST_P(GroupMembershipTest, AWakeEndsAWaitInAndOutsideAnEpoch) {
  StartAll(2);
  for (const char* where :
       {"gathering or in the epoch", "in the epoch", "behind its end"}) {
    SCOPED_TRACE(where);
    process(0)->Wake();
    process(0)->Wait(absl::InfiniteDuration());
    for (int round = 0; round < 100; ++round) {
      std::atomic<bool> asked = false;
      std::thread waker([&] {
        asked.store(true);
        process(0)->Wake();
      });
      while (!asked.load()) process(0)->Wait(absl::InfiniteDuration());
      waker.join();
    }
    if (std::string(where) == "gathering or in the epoch") AwaitStarts();
    if (std::string(where) == "in the epoch") {
      process(1)->Leave();
      EXPECT_EQ(process(0).AwaitEnd().ranks, (Ranks{2, 3}));
    }
  }
}

// Whoever has steps in flight, or a lease, may stay there for long.
TEST_P(GroupMembershipTest, BehindAnEpochsEndAWaitBlocks) {
  StartAll(2);
  AwaitStarts();
  process(1)->Leave();
  process(0).AwaitEnd();
  const MonotonicClock clock;
  const absl::Duration timeout = absl::Milliseconds(30);
  int waits = 0;
  for (bool blocked = false; !blocked && waits < 5; ++waits) {
    const absl::Time start = clock.Now();
    process(0)->Wait(timeout);
    blocked = clock.Now() - start >= timeout;
  }
  EXPECT_LT(waits, 5);
}

// Its own shape doesn't fit the leader's memory.
TEST(GroupMembershipConnectTest, AProcessThatCannotConnectIsNamedByAll) {
  const std::string leader = FreeAddress();
  std::vector<std::unique_ptr<Process>> processes;
  for (uint32_t p = 0; p < 3; ++p) {
    GroupMembershipOptions options = OptionsOf(p, 3, leader);
    if (p == 1) options.transport.shape.experts.max_tokens = 5;
    processes.push_back(std::make_unique<Process>(options));
  }
  for (int round = 0; round < 2; ++round) {
    for (uint32_t p = 0; p < 3; ++p) {
      const GroupEpochEnd end = processes[p]->AwaitEnd();
      EXPECT_FALSE(end.started);
      EXPECT_EQ(end.ranks, (Ranks{2, 3}));
      // The others may see it close its connection before they are told why.
      EXPECT_TRUE(p != 1 || end.reason.starts_with("it cannot connect"))
          << end.reason;
    }
    for (const auto& process : processes) CHECK_OK((*process)->Join());
  }
}

TEST(GroupMembershipStartTest, AnErrorNamesTheFlag) {
  const auto taken = ListenOn({.host = "127.0.0.1", .port = 0});
  CHECK_OK(taken.status());
  const std::string leader = FormatHostPort(LocalAddress(*taken));
  const absl::Status bind =
      GroupMembership::Start(OptionsOf(0, 2, leader)).status();
  EXPECT_NE(std::string(bind.message()).find("--leader"), std::string::npos)
      << bind;
  GroupMembershipOptions options = OptionsOf(0, 2, FreeAddress());
  options.transport.network_devices = "none7";
  const absl::Status device = GroupMembership::Start(options).status();
  EXPECT_NE(std::string(device.message()).find("none7"), std::string::npos)
      << device;
}

}  // namespace
}  // namespace baton
