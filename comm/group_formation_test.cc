#include "comm/group_formation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

namespace baton {
namespace {

// Ranks 0 1 | 2 3 | 4 5 | 6 7, if all are there.
constexpr uint32_t kEpSize = 8;
constexpr uint32_t kLocalRanks = 2;

GroupMember Member(uint32_t offset, uint64_t incarnation = 1) {
  return {.rank_offset = offset,
          .local_ranks = kLocalRanks,
          .link_address = "link" + std::to_string(offset),
          .transport_address = "t",
          .incarnation = incarnation};
}
GroupHello Hello(uint32_t offset, uint64_t incarnation = 1) {
  return {.fingerprint = "f",
          .options = {{"kv_dtype", "f32"}},
          .ep_size = kEpSize,
          .member = Member(offset, incarnation)};
}
GroupFormed Formed(uint64_t epoch) {
  return {.epoch = epoch,
          .members = {Member(0), Member(2), Member(4), Member(6)}};
}

// A formation, and what it wants done.
class Subject {
 public:
  explicit Subject(uint32_t offset)
      : formation_({.self = Hello(offset), .leader_address = "leader"}) {
    formation_.Tick(now_);
  }

  GroupFormation* operator->() { return &formation_; }
  void Pass(absl::Duration time) {
    now_ += time;
    formation_.Tick(now_);
  }
  // The actions of one kind since the last call for that kind.
  template <typename Action>
  std::vector<Action> Take() {
    formation_.CheckInvariants();
    for (GroupAction& action : formation_.TakeActions()) {
      actions_.push_back(std::move(action));
    }
    std::vector<Action> taken;
    std::erase_if(actions_, [&taken](const GroupAction& action) {
      const auto* wanted = std::get_if<Action>(&action);
      if (wanted) taken.push_back(*wanted);
      return wanted != nullptr;
    });
    return taken;
  }
  // The messages of one kind: to whom, and what.
  template <typename Message>
  std::vector<std::pair<ConnectionId, Message>> Sent() {
    std::vector<std::pair<ConnectionId, Message>> sent;
    for (const GroupSend& action : Take<GroupSend>()) {
      if (const auto* message = std::get_if<Message>(&action.message)) {
        sent.emplace_back(action.connection, *message);
      } else {
        actions_.push_back(action);
      }
    }
    return sent;
  }
  bool Closes(ConnectionId id) {
    const auto closed = Take<GroupClose>();
    return std::any_of(
        closed.begin(), closed.end(),
        [id](const GroupClose& close) { return close.connection == id; });
  }
  std::vector<std::string> Notes() {
    std::vector<std::string> notes;
    for (GroupNote& note : Take<GroupNote>()) {
      notes.push_back(std::move(note.text));
    }
    return notes;
  }
  ConnectionId Says(const GroupMessage& message) {
    const ConnectionId id = formation_.Accepted();
    formation_.Received(id, message);
    return id;
  }

 private:
  GroupFormation formation_;
  absl::Time now_ = absl::UnixEpoch();
  std::vector<GroupAction> actions_;
};

class LeaderTest : public ::testing::Test {
 protected:
  LeaderTest() { leader_->Join("t"); }

  void AllSayHello() {
    for (const uint32_t offset : {6, 2, 4}) {
      members_.push_back(leader_.Says(Hello(offset)));
    }
  }
  void Run() {
    AllSayHello();
    for (const ConnectionId id : members_) {
      leader_->Received(id, GroupReady{1});
    }
    ASSERT_EQ(leader_->phase(), GroupPhase::kRunning);
  }

  Subject leader_{0};
  std::vector<ConnectionId> members_;
};

TEST(GroupFormationTest, OneProcessWithAllRanksStartsAtOnce) {
  GroupHello self = Hello(0);
  self.member.local_ranks = kEpSize;
  GroupFormation formation({.self = self});
  formation.Join("t");
  EXPECT_EQ(formation.phase(), GroupPhase::kRunning);
  EXPECT_EQ(formation.last_epoch(), 1u);
}

TEST_F(LeaderTest, FormsWhenAllRanksAreThereAndStartsWhenAllAreReady) {
  AllSayHello();
  const auto formed = leader_.Sent<GroupFormed>();
  ASSERT_EQ(formed.size(), 3u);
  EXPECT_EQ(formed[0].second.epoch, 1u);
  EXPECT_EQ(formed[0].second.members, Formed(1).members);
  ASSERT_EQ(leader_.Take<GroupHasFormed>().size(), 1u);
  leader_->Received(members_[0], GroupReady{1});
  leader_->Received(members_[1], GroupReady{1});
  EXPECT_TRUE(leader_.Sent<GroupStart>().empty());
  leader_->Received(members_[2], GroupReady{1});
  EXPECT_EQ(leader_.Sent<GroupStart>().size(), 3u);
  EXPECT_EQ(leader_.Take<GroupHasStarted>().size(), 1u);
}

TEST_F(LeaderTest, ARestartedLeaderLearnsTheEpochFromItsMembers) {
  GroupHello hello = Hello(4);
  hello.last_epoch = 17;
  leader_.Says(Hello(2));
  leader_.Says(hello);
  leader_.Says(Hello(6));
  EXPECT_EQ(leader_.Sent<GroupFormed>().at(0).second.epoch, 18u);
}

TEST_F(LeaderTest, AMismatchIsRefusedAndTheGroupWaitsOn) {
  GroupHello hello = Hello(2);
  hello.options[0].value = "bf16";
  const ConnectionId id = leader_.Says(hello);
  const auto refused = leader_.Sent<GroupRefused>();
  ASSERT_EQ(refused.size(), 1u);
  EXPECT_EQ(refused[0].second.field, "--kv_dtype");
  EXPECT_EQ(refused[0].second.reason,
            "--kv_dtype is f32 on ranks 0..1 (the leader) and bf16 on ranks "
            "2..3");
  EXPECT_TRUE(leader_.Closes(id));
  AllSayHello();
  EXPECT_EQ(leader_->phase(), GroupPhase::kLinking);
}

TEST_F(LeaderTest, AnotherVersionIsRefused) {
  const ConnectionId id = leader_.Says(GroupForeignVersion{7});
  const auto refused = leader_.Sent<GroupRefused>();
  ASSERT_EQ(refused.size(), 1u);
  EXPECT_EQ(refused[0].second.reason,
            "protocol version is 1 on the leader and 7 on this process");
  EXPECT_TRUE(leader_.Closes(id));
}

TEST_F(LeaderTest, WhoseRanksAreHeldGetsThemWhenTheHolderIsGone) {
  const ConnectionId holder = leader_.Says(Hello(2, 1));
  const ConnectionId newcomer = leader_.Says(Hello(2, 2));
  leader_.Says(Hello(4));
  leader_->Closed(holder, "reset");
  leader_.Says(Hello(6));
  const auto formed = leader_.Sent<GroupFormed>();
  ASSERT_EQ(formed.size(), 3u);
  EXPECT_EQ(formed[0].first, newcomer);
  EXPECT_EQ(formed[0].second.members[1].incarnation, 2u);
}

TEST_F(LeaderTest, WhoseRanksAreHeldForLongIsRefused) {
  const ConnectionId holder = leader_.Says(Hello(2, 1));
  GroupHello overlapping = Hello(3, 2);
  const ConnectionId newcomer = leader_.Says(overlapping);
  leader_.Pass(absl::Seconds(9));
  EXPECT_TRUE(leader_.Sent<GroupRefused>().empty());
  leader_.Pass(absl::Seconds(1));
  const auto refused = leader_.Sent<GroupRefused>();
  ASSERT_EQ(refused.size(), 1u);
  EXPECT_EQ(refused[0].first, newcomer);
  EXPECT_EQ(refused[0].second.reason,
            "--rank_offset=3: another process, at link2, hosts ranks 2..3");
  EXPECT_FALSE(leader_.Closes(holder));
}

TEST_F(LeaderTest, AProcessThatCameBackReplacesItsOwnDeadConnection) {
  Run();
  leader_.Says(Hello(2));
  leader_.Pass(absl::Seconds(10));
  const auto ended = leader_.Take<GroupHasEnded>();
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_EQ(ended[0].end.ranks, (std::vector<uint32_t>{2, 3}));
}

TEST_F(LeaderTest, WhoIsNotReadyInTimeIsNamedAndDropped) {
  AllSayHello();
  leader_->Received(members_[1], GroupReady{1});  // Ranks 2 and 3.
  leader_.Pass(absl::Seconds(10));
  const auto ended = leader_.Take<GroupHasEnded>();
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_FALSE(ended[0].end.started);
  EXPECT_EQ(ended[0].end.ranks, (std::vector<uint32_t>{4, 5, 6, 7}));
  EXPECT_EQ(ended[0].end.reason, "ranks 4..7 were not ready within 10s");
  EXPECT_EQ(leader_.Sent<GroupEpochEnding>().size(), 3u);
  EXPECT_EQ(leader_.Take<GroupClose>().size(), 3u);
}

TEST_F(LeaderTest, ALostMemberEndsTheEpochForAllAndIsNamed) {
  Run();
  leader_->Closed(members_[0], "connection reset");
  const auto told = leader_.Sent<GroupEpochEnding>();
  ASSERT_EQ(told.size(), 2u);
  for (const auto& [to, ending] : told) {
    EXPECT_EQ(ending.epoch, 1u);
    EXPECT_EQ(ending.ranks, (std::vector<uint32_t>{6, 7}));
    EXPECT_EQ(ending.reason, "lost ranks 6..7: connection reset");
  }
  EXPECT_EQ(leader_.Take<GroupClose>().size(), 2u);
  EXPECT_TRUE(leader_.Take<GroupHasEnded>().at(0).end.started);
  EXPECT_EQ(leader_->phase(), GroupPhase::kOutside);
}

TEST_F(LeaderTest, WaitsForItsOwnProcessToJoinAgain) {
  Run();
  leader_->Closed(members_[0], "reset");
  leader_.Sent<GroupFormed>();
  AllSayHello();
  EXPECT_TRUE(leader_.Sent<GroupFormed>().empty());
  leader_->Join("t2");
  const auto formed = leader_.Sent<GroupFormed>();
  ASSERT_EQ(formed.size(), 3u);
  EXPECT_EQ(formed[0].second.epoch, 2u);
  EXPECT_EQ(formed[0].second.members[0].transport_address, "t2");
}

TEST_F(LeaderTest, OnlyTheEpochThatIsMeantIsEnded) {
  Run();
  leader_->EndEpoch(2, {4}, "late");
  EXPECT_EQ(leader_->phase(), GroupPhase::kRunning);
  leader_->EndEpoch(1, {5, 4, 4, 99}, std::string(5000, 'x'));
  const auto told = leader_.Sent<GroupEpochEnding>();
  ASSERT_EQ(told.size(), 3u);
  EXPECT_EQ(told[0].second.ranks, (std::vector<uint32_t>{4, 5}));
  EXPECT_EQ(told[0].second.reason.size(), kMaxGroupTextBytes);
}

TEST_F(LeaderTest, AMemberThatTalksNonsenseEndsTheEpochAndIsNamed) {
  Run();
  leader_->Received(members_[2], GroupReady{1});
  EXPECT_EQ(leader_.Take<GroupHasEnded>().at(0).end.ranks,
            (std::vector<uint32_t>{4, 5}));
}

TEST_F(LeaderTest, ASilentStrangerIsClosed) {
  const ConnectionId id = leader_->Accepted();
  leader_.Pass(absl::Seconds(4));
  EXPECT_FALSE(leader_.Closes(id));
  leader_.Pass(absl::Seconds(1));
  EXPECT_TRUE(leader_.Closes(id));
}

TEST_F(LeaderTest, TooManyStrangersAreClosedAtOnce) {
  for (int i = 0; i < 256; ++i) leader_->Accepted();
  EXPECT_TRUE(leader_.Take<GroupClose>().empty());
  const ConnectionId id = leader_->Accepted();
  EXPECT_TRUE(leader_.Closes(id));
}

TEST_F(LeaderTest, SaysWhichRanksAreMissing) {
  leader_.Says(Hello(4));
  leader_.Notes();
  leader_.Pass(absl::Seconds(5));
  EXPECT_EQ(leader_.Notes(),
            (std::vector<std::string>{
                "group waits for ranks 2..3 6..7 of 8, has 2 processes"}));
  leader_.Pass(absl::Seconds(5));
  EXPECT_EQ(leader_.Notes().size(), 1u);
}

// Ranks 4 and 5: dials the leader and ranks 2 and 3; ranks 6 and 7 dial it.
class MemberTest : public ::testing::Test {
 protected:
  MemberTest() {
    member_->Join("t");
    leader_ = member_.Take<GroupConnect>().at(0).connection;
  }
  // Up to Formed; the connection to ranks 2 and 3.
  ConnectionId ReceiveFormed() {
    member_->Connected(leader_, "link4");
    member_->Received(leader_, Formed(1));
    const auto dialled = member_.Take<GroupConnect>();
    EXPECT_EQ(dialled.size(), 1u);
    EXPECT_EQ(dialled.at(0).address, "link2");
    return dialled.at(0).connection;
  }
  void Run() {
    lower_ = ReceiveFormed();
    member_->Connected(lower_, "link4");
    upper_ = member_.Says(GroupLinkHello{1, 6, 1});
    member_->Received(leader_, GroupStart{1});
    ASSERT_EQ(member_->phase(), GroupPhase::kRunning);
  }

  Subject member_{4};
  ConnectionId leader_, lower_, upper_;
};

TEST_F(MemberTest, SaysHelloWithTheAddressWherePeersReachIt) {
  member_->Connected(leader_, "10.0.0.4:44");
  const auto hello = member_.Sent<GroupHello>();
  ASSERT_EQ(hello.size(), 1u);
  EXPECT_EQ(hello[0].second.member.link_address, "10.0.0.4:44");
  EXPECT_EQ(hello[0].second.member.transport_address, "t");
}

TEST_F(MemberTest, IsReadyWithAllItsLinksAndStartsWhenTold) {
  const ConnectionId lower = ReceiveFormed();
  member_->Connected(lower, "link4");
  const auto link = member_.Sent<GroupLinkHello>();
  ASSERT_EQ(link.size(), 1u);
  EXPECT_EQ(link[0].second.rank_offset, 4u);
  EXPECT_TRUE(member_.Sent<GroupReady>().empty());
  member_.Says(GroupLinkHello{1, 6, 1});
  EXPECT_EQ(member_.Sent<GroupReady>().size(), 1u);
  EXPECT_TRUE(member_.Take<GroupHasStarted>().empty());
  member_->Received(leader_, GroupStart{1});
  EXPECT_EQ(member_.Take<GroupHasStarted>().at(0).group.members,
            Formed(1).members);
}

TEST_F(MemberTest, ALinkBeforeFormedIsKeptForIt) {
  const ConnectionId early = member_.Says(GroupLinkHello{1, 6, 1});
  member_->Connected(ReceiveFormed(), "link4");
  EXPECT_EQ(member_.Sent<GroupReady>().size(), 1u);
  EXPECT_FALSE(member_.Closes(early));
}

TEST_F(MemberTest, ALinkThatFitsNobodyIsClosed) {
  ReceiveFormed();
  for (const GroupLinkHello& link :
       {GroupLinkHello{0, 6, 1},     // An old epoch.
        GroupLinkHello{1, 6, 2},     // Another incarnation.
        GroupLinkHello{1, 2, 1},     // Ours to dial.
        GroupLinkHello{1, 7, 1}}) {  // No process begins there.
    EXPECT_TRUE(member_.Closes(member_.Says(link)));
  }
  EXPECT_FALSE(member_.Closes(member_.Says(GroupLinkHello{1, 6, 1})));
  EXPECT_TRUE(member_.Closes(member_.Says(GroupLinkHello{1, 6, 1})));
}

TEST_F(MemberTest, AnEarlyLinkWithoutItsFormedIsClosedInTime) {
  member_->Connected(leader_, "link4");
  const ConnectionId early = member_.Says(GroupLinkHello{9, 6, 1});
  member_.Pass(absl::Seconds(10));
  EXPECT_TRUE(member_.Closes(early));
}

TEST_F(MemberTest, TriesAgainWithAGrowingBoundedPause) {
  absl::Duration last = absl::ZeroDuration();
  for (int i = 0; i < 20; ++i) {
    member_->Closed(leader_, "refused");
    ASSERT_EQ(member_->phase(), GroupPhase::kPausing);
    absl::Duration pause = absl::ZeroDuration();
    while (member_->phase() == GroupPhase::kPausing) {
      member_.Pass(absl::Milliseconds(10));
      pause += absl::Milliseconds(10);
    }
    EXPECT_GE(pause, last);
    EXPECT_LE(pause, absl::Milliseconds(500));
    last = pause;
    leader_ = member_.Take<GroupConnect>().at(0).connection;
  }
  EXPECT_EQ(last, absl::Milliseconds(500));
}

TEST_F(MemberTest, ALeaderThatDoesNotAnswerIsDialledAgain) {
  member_.Pass(absl::Seconds(5));
  EXPECT_TRUE(member_.Closes(leader_));
  EXPECT_EQ(member_->phase(), GroupPhase::kPausing);
}

TEST_F(MemberTest, ARefusedProcessNeverTriesAgain) {
  member_->Connected(leader_, "link4");
  member_->Received(leader_, GroupRefused{"fingerprint", "differs"});
  EXPECT_EQ(member_.Take<GroupWasRefused>().at(0).refused.reason, "differs");
  EXPECT_EQ(member_->next_deadline(), absl::InfiniteFuture());
  const ConnectionId late = member_->Accepted();
  EXPECT_TRUE(member_.Closes(late));
}

TEST_F(MemberTest, AGroupThatCannotBeIsNotEntered) {
  GroupFormed without_us = Formed(1);
  without_us.members[2].incarnation = 9;
  GroupFormed with_a_gap = Formed(1);
  with_a_gap.members.pop_back();
  for (const GroupFormed& formed : {without_us, with_a_gap, Formed(0)}) {
    member_->Connected(leader_, "link4");
    member_->Received(leader_, formed);
    ASSERT_EQ(member_->phase(), GroupPhase::kPausing);
    member_.Pass(absl::Seconds(1));
    leader_ = member_.Take<GroupConnect>().at(0).connection;
  }
}

TEST_F(MemberTest, APeerThatCannotBeReachedIsNamed) {
  const ConnectionId lower = ReceiveFormed();
  member_->Closed(lower, "cannot connect to link2");
  const auto told = member_.Sent<GroupEpochEnding>();
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].first, leader_);
  EXPECT_EQ(told[0].second.reason, "lost ranks 2..3: cannot connect to link2");
}

TEST_F(MemberTest, WhoDoesNotMakeItsLinkIsNamedWhenTheLeaderIsSilent) {
  member_->Connected(ReceiveFormed(), "link4");
  member_.Pass(absl::Seconds(20));
  EXPECT_EQ(member_.Take<GroupHasEnded>().at(0).end.ranks,
            (std::vector<uint32_t>{6, 7}));
}

TEST_F(MemberTest, ALeaderThatDoesNotStartIsNamed) {
  member_->Connected(ReceiveFormed(), "link4");
  member_.Says(GroupLinkHello{1, 6, 1});
  member_.Pass(absl::Seconds(20));
  EXPECT_EQ(member_.Take<GroupHasEnded>().at(0).end.ranks,
            (std::vector<uint32_t>{0, 1}));
}

TEST_F(MemberTest, AnEndIsPassedOnAsItWasTold) {
  Run();
  member_->Received(upper_, GroupEpochEnding{1, {2, 3}, "lost"});
  EXPECT_EQ(member_.Sent<GroupEpochEnding>().size(), 3u);
  const auto ended = member_.Take<GroupHasEnded>();
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_EQ(ended[0].end.ranks, (std::vector<uint32_t>{2, 3}));
  EXPECT_EQ(ended[0].end.reason, "lost");
}

TEST_F(MemberTest, ALostLinkEndsTheEpochAndNamesItsRanks) {
  for (const auto& [lost, ranks] :
       std::vector<std::pair<ConnectionId*, std::vector<uint32_t>>>{
           {&leader_, {0, 1}}, {&lower_, {2, 3}}, {&upper_, {6, 7}}}) {
    Subject fresh(4);
    std::swap(member_, fresh);
    member_->Join("t");
    leader_ = member_.Take<GroupConnect>().at(0).connection;
    Run();
    member_->Closed(*lost, "reset");
    EXPECT_EQ(member_.Take<GroupHasEnded>().at(0).end.ranks, ranks);
    EXPECT_EQ(member_.Sent<GroupEpochEnding>().size(), 2u);
  }
}

TEST_F(MemberTest, GoesBackToTheLeaderAtOnceAfterAnEpochThatLasted) {
  Run();
  member_.Pass(absl::Seconds(1));
  member_->Closed(upper_, "reset");
  member_->Join("t");
  EXPECT_EQ(member_->phase(), GroupPhase::kConnecting);
}

TEST_F(MemberTest, PausesAfterAnEpochThatDidNotLast) {
  Run();
  member_->Closed(upper_, "reset");
  member_->Join("t");
  EXPECT_EQ(member_->phase(), GroupPhase::kPausing);
}

}  // namespace
}  // namespace baton
